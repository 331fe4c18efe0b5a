"""Tables made of files."""
