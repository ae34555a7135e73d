"""Tensor-parallel layers. Each reads its own shard of its weights and knows no model family."""
