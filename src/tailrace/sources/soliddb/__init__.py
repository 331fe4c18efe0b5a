"""solidDB as a source."""
