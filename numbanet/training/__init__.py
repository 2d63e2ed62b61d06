"""Training: the loop, the optimisers, the tasks and the hooks with which an estimator trains a model under a dropout policy."""
