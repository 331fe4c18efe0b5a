"""Source against target at one position, and repair."""
