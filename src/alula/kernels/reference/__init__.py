"""The definition of correct for every operation, in plain torch, on any device."""
