"""Random networks of the library's layers, and samples for them."""

import numpy as np

from numbanet import Tensor, device, layers as L


def _settled(layers, rng):
    """The layers, with running values and biases that are not the initial ones."""
    for layer in layers:
        for name, tensor, _ in layer.named():
            if name.rpartition(".")[2] in ("bias", "running_mean", "weight") and tensor.dtype == np.float32:
                tensor.assign(np.float32(tensor.numpy() + 0.1 * rng.standard_normal(tensor.shape)))
            elif name.endswith("running_var"):
                tensor.assign(np.float32(0.5 + rng.random(tensor.shape)))
    return layers


def _activation(rng):
    return rng.choice([L.ReLU, L.Tanh, L.Sigmoid, L.GELU])()


def images(rng):
    """(layers, shape of a sample): convolutions, norms and poolings."""
    channels, side, layers = int(rng.integers(1, 4)), int(rng.integers(9, 14)), []
    shape = (channels, side, side + 1)
    if rng.random() < 0.3:
        layers.append(L.Normalize(rng.random(channels), 0.5 + rng.random(channels)))
    for _ in range(rng.integers(1, 3)):
        groups = int(rng.choice([1, channels]))
        filters, kernel = groups * int(rng.integers(1, 4)), int(rng.integers(1, 4))
        layers.append(
            L.Conv2d(
                channels,
                filters,
                kernel,
                stride=int(rng.integers(1, 3)),
                padding=(int(rng.integers(0, 3)), 1),
                dilation=int(rng.integers(1, 3)),
                groups=groups,
                bias=bool(rng.random() < 0.7),
                padding_mode=str(rng.choice(["zeros", "zeros", "reflect", "replicate", "circular"])),
                rng=rng,
            )
        )
        layers += [L.BatchNorm2d(filters, affine=bool(rng.random() < 0.7))] * int(rng.random() < 0.5) + [_activation(rng)]
        channels = filters
    window = {
        "kernel_size": 2,
        "stride": int(rng.integers(1, 4)),
        "padding": int(rng.integers(2)),
        "ceil_mode": bool(rng.integers(2)),
    }
    pooling = [L.MaxPool2d(**window), L.AvgPool2d(**window, count_include_pad=bool(rng.integers(2)))]
    layers += [rng.choice(pooling), L.AdaptiveAvgPool2d((2, 3))]
    inner = L.Sequential([L.Flatten(), L.Linear(channels * 6, 5, bias=bool(rng.integers(2)), rng=rng)])
    return [*layers, inner, L.LayerNorm(5, elementwise_affine=bool(rng.integers(2)))], shape


def rows(rng):
    """The same: linear layers and selections of features."""
    n = int(rng.integers(4, 12))
    layers = [L.Shuffle(rng.permutation(n), rng.random(n) if rng.random() < 0.5 else None)]
    if rng.random() < 0.5:
        kept = np.sort(rng.choice(n, n - 2, replace=False))
        layers.append(L.Select(n, kept))
    width = n - 2 if len(layers) == 2 else n
    for _ in range(rng.integers(1, 4)):
        out = int(rng.integers(2, 9))
        sparse = rng.random() < 0.3
        layers.append(L.SparseLinear(width, out, 0.25, rng=rng) if sparse else L.Linear(width, out, rng=rng))
        layers += [L.BatchNorm1d(out, affine=bool(rng.random() < 0.7))] * int(rng.random() < 0.5) + [_activation(rng)]
        width = out
    return [*layers, L.Linear(width, 3, rng=rng)], (n,)


def sequences(rng):
    """The same: an embedding, whose padding symbol may be 0, recurrent layers, and the last step or all of them."""
    padding, both, width, layers = rng.choice([None, 0]), bool(rng.integers(2)), int(rng.integers(2, 6)), []
    layers.append(L.Embedding(9, width, padding_idx=padding, rng=rng))
    for _ in range(rng.integers(1, 3)):
        hidden, kind = int(rng.integers(2, 7)), rng.choice([L.LSTM, L.GRU])
        depth = int(rng.integers(1, 3))
        layers.append(kind(width, hidden, depth, bool(rng.integers(2)), batch_first=True, bidirectional=both, rng=rng))
        width = hidden * (1 + both)
    layers += [L.LastStep(both)] * int(rng.integers(2))
    return [*layers, L.Linear(width, 4, rng=rng)], (7,)


def drawn(seed):
    """(network, samples) of a random kind."""
    rng = np.random.default_rng(seed)
    kind = (images, rows, sequences)[seed % 3]
    layers, shape = kind(rng)
    if kind is sequences:
        x = rng.integers(0, 9, (5, *shape))
        for row, end in zip(x, rng.integers(1, shape[0] + 1, 5)):
            row[end:] = 0
    else:
        x = rng.standard_normal((5, *shape)).astype(np.float32)
    return L.Sequential(_settled(layers, rng)), x


def outputs(network, x):
    """What the network computes in prediction."""
    cpu = device("cpu")
    return network(Tensor.wrap(x.astype(np.int32), cpu) if x.dtype.kind == "i" else Tensor(x)).numpy()
