"""Source to LOG: the process, baselines, which tables."""
