"""Training: the loop, optimisers, tasks and hooks by which an estimator trains a model on data under a dropout policy."""
