"""How kept rows and tiles lie in memory: arithmetic and named tuples, no kernel."""
