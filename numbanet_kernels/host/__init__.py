"""The CPU: its threads, its matrix products, transposition, and from which sizes on sharing work pays."""
