"""Arithmetic on shapes: the bytes and operations that a forward cannot do without, and what they cost at best."""
