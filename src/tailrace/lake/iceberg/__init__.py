"""Iceberg tables: copy-on-write by pyiceberg. Only this package and `targets/iceberg` import pyiceberg."""
