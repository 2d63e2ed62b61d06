"""Checkpoints: what `fit(checkpoint=...)` writes, and how `resume` goes on from it."""
