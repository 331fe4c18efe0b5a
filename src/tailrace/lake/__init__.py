"""Tables as files: Delta tables, LOG, fail points, and guards of commits."""
