"""A task's own state: its small tables, leases and live status."""
