"""Communication between ranks: the group, admission and dispatch with reasons, the environment plan and its proof."""
