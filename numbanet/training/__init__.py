"""Training: what an estimator needs to turn a model, data and a policy into weights."""
