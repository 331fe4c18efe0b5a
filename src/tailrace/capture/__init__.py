"""Capture reads a source's log into the task's LOG table, and takes the baselines of its tables."""
