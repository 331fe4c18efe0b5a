"""The chaos driver: a real database, a real task, and everything that can go wrong, for so many minutes."""
