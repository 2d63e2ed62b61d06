"""The CPU: threads, matrix products, vectors, transposition, and the sizes from which sharing work pays."""
