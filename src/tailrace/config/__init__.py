"""The task file: its models, what applies to a table, its JSON schema."""
