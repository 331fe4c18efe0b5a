"""Validation (source against target at one position) and repair."""
