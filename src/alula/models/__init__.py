"""Model families, where models come from, and how their checkpoints are read."""
