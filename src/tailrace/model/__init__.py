"""Words of the field: changes, sequences, masks, types."""
