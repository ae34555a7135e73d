"""What to run next on an engine: the exact flag, variable or log level, by engine and version."""
