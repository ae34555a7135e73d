"""EAGLE-3: the draft model, its checkpoints, drafting, acceptance."""
