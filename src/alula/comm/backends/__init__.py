"""Collective backends. Each says whether it takes a call and why not; none knows of the others."""
