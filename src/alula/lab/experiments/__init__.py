"""One experiment a file; alula/lab/registry.py lists them."""
