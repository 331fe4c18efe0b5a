"""The command line: thin, over the functions that commands call."""
