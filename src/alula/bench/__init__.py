"""Plain and EAGLE-3 decoding of the same prompts in one run: prompts, comparison, figures, reports.

Drives an engine through the few methods of `compare.Decoder`; knows nothing of tensors, and loads no torch.
"""
