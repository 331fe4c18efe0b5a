"""Semantics of change batches and queries, as functions over arrays: no Spark, no files, no clock."""
