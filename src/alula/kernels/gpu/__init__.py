"""Triton twins of reference operations for CUDA GPUs: same names and signatures, a subset."""
