"""What a batch of changes means, in arrays: no Spark, no files, no clock."""
