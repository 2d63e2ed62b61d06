"""Networks that tests interrupt: data, settings, and whether two have the same state, bit by bit."""

import numpy as np

from numbanet.datasets import load_digits

X, Y, X_TEST, Y_TEST = load_digits()
SMALL = {"layers": (32, 32), "epochs": 20, "random_state": 0, "device": "cpu"}


def state(net):
    return net.model_.state_dict()


def same(a, b):
    return a.keys() == b.keys() and all(np.array_equal(a[name], b[name]) for name in a)
