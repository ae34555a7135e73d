"""Configs, records, errors: what every other folder may import. Imports nothing of ours, and no torch."""
