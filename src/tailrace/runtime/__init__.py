"""The Spark session, processes, the pipeline."""
