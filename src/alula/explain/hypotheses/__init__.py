"""One possible cause a file. A hypothesis judges any case and names none; `registry.py` lists them."""
