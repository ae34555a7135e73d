"""Operations on tensors. `reference` defines what is correct, in torch; `cpu` and `gpu` hold faster twins."""
