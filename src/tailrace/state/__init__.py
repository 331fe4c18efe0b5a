"""What a task knows of itself."""
