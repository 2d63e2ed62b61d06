"""Training data that are larger than memory: memory-mapped arrays, and batches that an iterable yields."""
