"""The network that tests make smaller, its data, and what it is made of."""

from numbanet import Conv2d, Flatten, GroupLasso, Linear, MaxPool2d, Net, ReLU
from numbanet.datasets import load_digits

X, Y, X_TEST, Y_TEST = load_digits()
IMAGES = X.reshape(-1, 1, 8, 8)
SMALL = {
    "layers": (48, 48),
    "init": "he",  # what the strengths below are for
    "epochs": 6,
    "batch_size": 32,
    "learning_rate": 0.02,
    "random_state": 0,
    "device": "cpu",
}
ROWS = GroupLasso(8e-3)


def convolutions():
    return [Conv2d(1, 8, 3, rng=0), ReLU(), MaxPool2d(2), Flatten(), Linear(72, 32, rng=1), ReLU(), Linear(32, 10, rng=2)]


def fitted(sparsity=ROWS, X=X, **options):
    return Net(**{**SMALL, "sparsity": sparsity, **options}).fit(X, Y)


def sizes(net):
    return [tuple(p.shape) for p in net.model_.parameters() if p.ndim > 1]
