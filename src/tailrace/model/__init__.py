"""Core concepts: changes, change sequences, masks, types."""
