"""Embedding: equal to PyTorch's, lazy where it may be, of integers alone."""

import pickle

import numpy as np
import pytest

from numbanet import (
    LSTM,
    SGD,
    Context,
    Embedding,
    Flatten,
    Linear,
    Net,
    ReLU,
    RowDropout,
    Sequential,
    Tensor,
    WindowPlan,
    device,
    ops,
)
from numbanet.gradients import Packed

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")


def close(ours, theirs, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=tolerance, atol=tolerance)


def test_embedding_equals_pytorchs(dev, rng):
    theirs = torch.nn.Embedding(9, 4)
    ours = Embedding(9, 4, device=dev)
    ours.load_state_dict(dict(theirs.named_parameters()))  # which require gradients
    ids, dy = rng.integers(9, size=(5, 3)), rng.standard_normal((5, 3, 4)).astype(np.float32)
    y = ops.embedding(ours.weight, ids=ids)
    y.backward(dy)
    other = theirs(torch.from_numpy(ids))
    other.backward(torch.from_numpy(dy))
    close(y.numpy(), other.detach())
    assert isinstance(ours.weight.gradient, Packed) and len(ours.weight.gradient.values) == len(np.unique(ids))
    close(ours.weight.grad.numpy(), theirs.weight.grad)
    y = ops.embedding(ours.weight, ids=ids)
    y.backward(dy)  # other lookups add up
    close(ours.weight.grad.numpy(), 2 * theirs.weight.grad)


@pytest.mark.parametrize(
    "ids, error, message",
    [
        (np.array([9]), ValueError, "do not fit a table of 9 rows"),
        (np.array([-1]), ValueError, "do not fit"),
        (np.ones(2), TypeError, "not integers"),
        (np.ones(2), TypeError, "a layer of your own that calls an Embedding sets its attribute `symbols`"),
    ],
)
def test_ids_are_checked(dev, ids, error, message):
    with pytest.raises(error, match=message):
        ops.embedding(Embedding(9, 4, device=dev).weight, ids=ids)


@pytest.mark.parametrize("layers", [(), (Flatten(),)], ids=["alone", "first"])
def test_integers_that_are_no_tensor_are_to_be_wrapped(layers):
    model, ids = Sequential([Embedding(9, 4, rng=0), *layers]) if layers else Embedding(9, 4, rng=0), np.array([[1, 2]])
    with pytest.raises(TypeError, match=r'write Tensor.wrap\(x, device\("cpu"\)\), as x holds integers'):
        model(ids)
    assert model(Tensor.wrap(ids, device("cpu"))).size == 8


def test_sequences_without_time_steps_have_vectors_of_none_and_recurrent_layers_refuse_them():
    ids = Tensor.wrap(np.zeros((4, 0), np.int32), device("cpu"))
    assert Embedding(9, 3, padding_idx=0)(ids).shape == (4, 0, 3)
    with pytest.raises(ValueError, match=r"LSTM: x \(4, 0, 3\) has no time steps"):
        Sequential([Embedding(9, 3, padding_idx=0), LSTM(3, 2, batch_first=True)])(ids)


@pytest.mark.parametrize("sizes, name", [((3.0, 2), "num_embeddings"), ((3, 0), "embedding_dim")])
def test_sizes_are_positive_integers(sizes, name):
    with pytest.raises(ValueError, match=f"Embedding: {name} must be a positive integer"):
        Embedding(*sizes)


@pytest.mark.parametrize("start, count", [(2, 3), (5, 4), (0, 7), (6, 1)])
def test_a_window_of_the_components_is_looked_up(dev, rng, start, count):
    """Also one that wraps around the end: values, and the gradients of kept components, are those of a mask."""
    table, weight = (rng.standard_normal(shape).astype(np.float32) for shape in ((9, 7), (5, 7)))
    ids, dy, mask = rng.integers(9, size=12), rng.standard_normal((12, 5)).astype(np.float32), np.zeros(7, np.float32)
    mask[(start + np.arange(count)) % 7] = 7 / count
    model = Sequential([Embedding(9, 7, device=dev), Linear(7, 5, bias=False, device=dev)])
    model.load_state_dict({"0.weight": table, "1.weight": weight})
    plans = {model[0]: WindowPlan(7, start, count, 7 / count)}
    y = model(Tensor.wrap(dev.upload(ids.astype(np.int32)), dev), Context(dev, plans, training=True, model=model))
    y.backward(dy)
    of_table = np.zeros_like(table)
    np.add.at(of_table, ids, dy @ weight * mask)
    close(y.numpy(), (table[ids] * mask) @ weight.T)
    close(model[0].weight.grad.numpy(), of_table)
    close(model[1].weight.grad.numpy(), dy.T @ (table[ids] * mask))


def words(rng, n=120):
    """Sequences of three symbols of twelve; the class is that of the first."""
    X = rng.integers(12, size=(n, 3))
    return X, X[:, 0] // 4


def texts(dev="cpu"):
    return [
        Embedding(12, 5, rng=0, device=dev),
        Flatten(),
        Linear(15, 8, rng=1, device=dev),
        ReLU(),
        Linear(8, 3, rng=2, device=dev),
    ]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_net_learns_from_integers(rng, optimizer):
    X, y = words(rng)
    net = Net(
        texts(), dropout=RowDropout(0.3), optimizer=optimizer, learning_rate=0.01, epochs=60, batch_size=16, random_state=0
    ).fit(X, y)
    assert net.score(*words(rng)) > 0.8
    again = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(again.predict(X), net.predict(X))
    with pytest.raises(ValueError, match=r"float64 .*Embedding\(12, 5\) takes integers"):
        net.fit(X + 0.5, y)
    with pytest.raises(ValueError, match="from 1 to 12, but .*from 0 to 11"):
        net.fit(X + 1, y)


@pytest.mark.parametrize(
    "X, message",
    [
        ([[1, 2, 3], [1, 2]], "lists of different lengths, but: pad sequences to one length with .* padding_idx"),
        ([["a", "b"], ["b"]], "lists of different lengths, but: pad"),
        ([["a", "b"], ["b", "c"]], r"texts, such as 'a', but: .*Vocabulary.of\(words\).encode\(words\)"),
        (["a b", "b c"], "texts, such as 'a b', but: give each word"),
        ([[1, None], [2, 3]], "None, but: pad"),
        ([[1, np.nan], [2, 3]], "NaN or infinity, but: pad"),
        ([[1.0, 2.0], [2.0, 3.0]], r"float64 from 1.0 to 3.0, but: convert whole numbers by X.astype\(int\)"),
        ([[1, 2], [2, 12]], "int64 from 1 to 12, but: number the symbols from 0, or make the Embedding larger"),
    ],
)
def test_what_an_embedding_takes_is_named_where_x_holds_something_else(X, message):
    takes = message.replace("but:", r"but Embedding\(12, 5\) takes integers from 0 to 11 in an array \(N, T\):")
    net = Net(texts(), epochs=1, random_state=0)
    for call in (lambda: net.fit(X, [0, 1]), lambda: net.fit(np.arange(9).reshape(3, 3), [0, 1, 2]).predict(X)):
        with pytest.raises(ValueError, match=f"X holds {takes}"):
            call()


def test_rows_of_an_embedding_that_no_step_reads_are_late_and_right(monkeypatch, rng):
    """The weights are those of dense updates, and some were left undone on the way."""
    X, y = words(rng)
    missed = []

    def fit(lazy):
        with monkeypatch.context() as patch:
            if not lazy:
                patch.setattr(Sequential, "reads", lambda self, plans, symbols=None: {})
            else:
                advance = SGD.advance

                def watched(self, *given):
                    advance(self, *given)
                    missed.append({m.count for m in self.lazy.values()})

                patch.setattr(SGD, "advance", watched)
            return Net(texts(), epochs=5, batch_size=2, random_state=0).fit(X, y).model_.state_dict()

    lazy, dense = fit(True), fit(False)
    for name, value in lazy.items():
        close(value, dense[name])
    assert any(max(counts, default=0) > 2 for counts in missed)


def test_integers_train_the_same_where_cuda_kernels_run(dev, rng):
    X, y = words(rng, 12)
    nets = [Net(texts(), epochs=1, batch_size=6, random_state=0, device=name).fit(X, y) for name in ("cpu", dev.name)]
    for ours, theirs in zip(*(net.model_.parameters() for net in nets), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)
