"""Foreign text to evidence. Readers never conclude; `registry.py` lists them, `protocol.py` says what one is."""
