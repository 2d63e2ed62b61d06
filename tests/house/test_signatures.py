"""Arguments of layers and optimisers mean what PyTorch's mean where they stand; what is not supported is refused by name."""

import inspect

import numpy as np
import pytest

import numbanet
from numbanet import (
    GELU,
    GRU,
    LSTM,
    AvgPool2d,
    BatchNorm1d,
    BatchNorm2d,
    Conv2d,
    Embedding,
    Flatten,
    LastStep,
    Layer,
    MaxPool2d,
    ReLU,
    Sequential,
    Tensor,
    ops,
)

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")

OWN = (Sequential,)  # takes a list, as its docstring says
SHARED = sorted(
    name
    for name, value in vars(numbanet).items()
    if inspect.isclass(value) and issubclass(value, Layer) and value not in OWN and hasattr(torch.nn, name)
)
LAST = ("device", "_weight")  # from here on PyTorch's arguments are given by name


def by_place(function, *, skipped=1):
    """(name, default) of the arguments that may be given by their place, but for the first ones."""
    found = [(p.name, p.default) for p in inspect.signature(function).parameters.values() if p.kind is p.POSITIONAL_OR_KEYWORD]
    names = [name for name, _ in found]
    return found[skipped : min([names.index(name) for name in LAST if name in names], default=len(names))]


def test_all_layers_with_a_name_of_pytorchs_are_looked_at():
    assert {
        "Linear",
        "Conv2d",
        "BatchNorm1d",
        "BatchNorm2d",
        "Embedding",
        "LSTM",
        "GRU",
        "LayerNorm",
        "MaxPool2d",
        "AvgPool2d",
        "AdaptiveAvgPool2d",
        "Flatten",
        "ReLU",
        "GELU",
    } <= set(SHARED)


@pytest.mark.parametrize("name", SHARED)
def test_positional_arguments_of_layers_are_pytorchs(name):
    theirs = getattr(torch.nn, name)
    if name in ("LSTM", "GRU"):
        given = by_place(torch.nn.RNNBase.__init__, skipped=2)
        theirs = [argument for argument in given if name == "LSTM" or argument[0] != "proj_size"]  # a GRU refuses it
    else:
        theirs = by_place(theirs.__init__)
    assert by_place(getattr(numbanet, name).__init__) == theirs


@pytest.mark.parametrize(
    "name, arguments",
    [
        ("SGD", ["lr", "momentum"]),
        ("Adam", ["lr", "betas", "eps", "weight_decay"]),
        ("AdamW", ["lr", "betas", "eps", "weight_decay"]),
    ],
)
def test_positional_arguments_of_optimisers_are_the_first_of_pytorchs(name, arguments):
    ours, theirs = (
        [found for found, _ in by_place(getattr(place, name).__init__, skipped=2)] for place in (numbanet, torch.optim)
    )
    assert ours == ["learning_rate", *arguments[1:]] and theirs[: len(ours)] == arguments


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda: BatchNorm1d(3, 1e-5, 0.1, False, False), "BatchNorm1d: track_running_stats=False is not supported"),
        (
            lambda: BatchNorm2d(3, 1e-5, 0.1, True, False),
            "BatchNorm2d: track_running_stats=False is not supported.*ops.batch_norm",
        ),
        (lambda: Conv2d(3, 4, 3, 1, 0, 1, 1, True, "mirror"), "Conv2d: padding_mode must be .*got 'mirror'"),
        (lambda: MaxPool2d(2, 2, 0, 1, True), "MaxPool2d: return_indices=True"),
        (lambda: AvgPool2d(2, 2, 0, False, True, 3), "AvgPool2d: divisor_override=3"),
        (lambda: Embedding(5, 2, None, 1.0), "Embedding: max_norm=1.0"),
        (lambda: Embedding(5, 2, sparse=True), "sparse=True"),
        (lambda: Embedding(5, 2, None, None, 2.0, True), "scale_grad_by_freq=True"),
        (lambda: LSTM(3, 4, 2, True, False, 0.5), "LSTM: dropout=0.5"),
        (lambda: GRU(3, 4, 2, True, False, 0.5), "GRU: dropout=0.5"),
        (lambda: LSTM(3, 4, 1, True, False, 0.0, False, 2), "LSTM: proj_size=2 .*a Linear after it"),
        (lambda: Flatten(0), "Flatten: start_dim=0"),
        (lambda: GELU("tanh"), "GELU: approximate='tanh'"),
        (lambda: ReLU(True), "ReLU: inplace=True"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_optimisers_refuse_what_stands_where_pytorch_has_something_else():
    w = Tensor(np.ones(3), requires_grad=True)
    for call in (lambda: numbanet.SGD([w], 0.1, 0.9, 0.5), lambda: numbanet.Adam([w], 0.1, (0.9, 0.99), 1e-8, 0.0, True)):
        with pytest.raises(TypeError, match="positional"):
            call()


# --- padding of an embedding ------------------------------------------------------------------------------------------
@pytest.mark.parametrize("padding", [None, 0, 4, -1, -5])
def test_padding_counts_from_the_end_as_pytorchs(dev, rng, padding):
    theirs, ours = torch.nn.Embedding(5, 3, padding), Embedding(5, 3, padding, device=dev)
    assert ours.padding_idx == theirs.padding_idx
    if padding is not None:
        assert not ours.weight.numpy()[padding].any()
    ours.load_state_dict(theirs.state_dict())
    ids, dy = np.array([[4, 1, 0], [3, 4, 4]], np.int32), rng.standard_normal((2, 3, 3)).astype(np.float32)
    other = torch.nn.functional.embedding(torch.from_numpy(ids), theirs.weight, padding)
    other.backward(torch.from_numpy(dy))
    for given, checked in ((ids, False), (dev.upload(ids), True)):
        ours.weight.zero_grad()
        y = ops.embedding(ours.weight, ids=given, padding=padding, checked=checked)
        y.backward(dy)
        np.testing.assert_array_equal(y.numpy(), other.detach())
        np.testing.assert_allclose(ours.weight.grad.numpy(), theirs.weight.grad, rtol=1e-6)


@pytest.mark.parametrize("padding, error", [(5, ValueError), (-6, ValueError), (1.0, TypeError), (True, TypeError)])
def test_padding_that_is_no_row_is_refused(padding, error):
    with pytest.raises(error, match="Embedding: padding_idx must be"):
        Embedding(5, 3, padding)
    with pytest.raises(error, match="embedding: padding must be"):
        ops.embedding(Embedding(5, 3).weight, ids=np.array([1]), padding=padding)


# --- sequences --------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("batch_first", [False, True])
def test_sequences_need_a_time_step(dev, batch_first):
    x = Tensor(np.zeros((2, 0, 3) if batch_first else (0, 2, 3)), dev)
    layer = LSTM(3, 4, batch_first=batch_first, device=dev)
    for call in (lambda: layer(x), lambda: Sequential([layer])(x)):
        with pytest.raises(ValueError, match=r"LSTM: x \(.*0.*\) has no time steps"):
            call()
    with pytest.raises(ValueError, match=r"LastStep: .* T at least 1, got \(2, 0, 3\)"):
        Sequential([LastStep()])(Tensor(np.zeros((2, 0, 3)), dev))
