"""What `tailrace` gives to Python programs: tasks, change tables, what the commands do."""
