"""Experiments on a running engine, named by hypotheses and judged by `explain`."""
