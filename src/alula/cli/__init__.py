"""The command line: one file a command that parses, calls and prints. A tower is imported inside the command only."""
