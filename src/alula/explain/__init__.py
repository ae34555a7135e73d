"""Evidence to hypotheses to a verdict: why speculation is slower than plain decoding, or that it is not."""
