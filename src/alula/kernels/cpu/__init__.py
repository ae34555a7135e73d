"""Twins of reference operations for CPUs: same names and signatures, a subset."""
