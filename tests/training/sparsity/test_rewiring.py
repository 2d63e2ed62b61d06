"""Sparse layers that are rewired while a network learns: how much, when, and what goes with it."""

import math
import pickle

import numpy as np
import pytest

from numbanet import Hook, Linear, Net, ReLU, Rewire, SparseLinear
from numbanet.datasets import load_digits
from numbanet.device import problem
from numbanet.sparse import BSR
from numbanet.training import validation
from numbanet.training.sparsity.rewiring import Rewiring
from numbanet_kernels.runtime import graph

X, Y, X_TEST, Y_TEST = load_digits()
SQUARE = SparseLinear(64, 64, rng=0)
STEPS = -(-len(X) // 128)  # of an epoch


def layers():
    return [
        SparseLinear(64, 128, density=0.1, rng=0),
        ReLU(),
        SparseLinear(128, 64, density=0.2, rng=1),
        ReLU(),
        Linear(64, 10, rng=2),
    ]


def fitted(sparsity, X=X, y=Y, **options):
    return Net(
        layers(), **{"epochs": 8, "batch_size": 128, "learning_rate": 0.05, "random_state": 0, "sparsity": sparsity, **options}
    ).fit(X, y)


@pytest.fixture
def asked(monkeypatch):
    """[(how many entries were to be rewired, how many there are)] of every rewiring."""
    found = []

    def rewire(self, count, total=None, original=SparseLinear.rewire):
        before = self.weight
        places = original(self, count, total)
        found.append((count, before.nnz))
        assert self.weight.nnz == before.nnz
        return places

    monkeypatch.setattr(SparseLinear, "rewire", rewire)
    return found


def test_a_share_that_falls_as_a_cosine_is_rewired_every_so_many_steps(asked):
    net = fitted(Rewire(share=0.4, every=4, until=0.5))
    shares = [0.2 * (1 + math.cos(math.pi * epoch / 4)) for epoch in range(4)]
    times = [sum(step % 4 == 0 for step in range(epoch * STEPS + 1, (epoch + 1) * STEPS + 1)) for epoch in range(4)]
    expected = [round(share * nnz) for share, count in zip(shares, times) for _ in range(count) for nnz in (819, 1638)]
    assert [count for count, _ in asked] == expected and len(expected) > 8
    assert [record["rewired"] for record in net.history_] == pytest.approx([s * n for s, n in zip(shares, times)] + [0] * 4)
    first, second = (net.model_.layers[k].weight for k in (0, 2))
    assert (first.nnz, second.nnz) == (819, 1638) and not np.array_equal(first.indices, layers()[0].weight.indices)
    assert all(layer.trace is None for layer in net.model_.layers if isinstance(layer, SparseLinear))


def test_a_rewired_network_learns_and_pickles():
    net = fitted(Rewire(every=10), epochs=25)
    assert net.score(X_TEST, Y_TEST) > 0.93
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(net)).predict(X_TEST), net.predict(X_TEST))


@pytest.mark.parametrize("optimizer, states", [("sgd", 1), ("adam", 2)])
def test_what_an_optimiser_carries_along_goes_with_the_values(monkeypatch, optimizer, states):
    seen = []

    def after_update(self, run, original=Rewiring.after_update):
        layer = run.model.layers[0]
        state = next(s for p, s in zip(run.optimizer.parameters, run.optimizer.state) if p is layer.values)
        before, old = [np.array(a) for a in state], layer.weight
        original(self, run)
        after, new = [np.array(a) for a in state], layer.weight
        dense = [np.zeros(new.shape, np.float32) for _ in before]
        for matrix, values in zip(dense, before):
            matrix[old.rows, old.indices] = values
        stayed = new.values != 0
        for matrix, values in zip(dense, after):
            np.testing.assert_array_equal(values[stayed], matrix[new.rows, new.indices][stayed])
        seen.append(((new.values == 0).any(), len(before)))

    monkeypatch.setattr(Rewiring, "after_update", after_update)
    fitted(Rewire(every=3, until=1.0), epochs=1, optimizer=optimizer)
    assert (True, states) in seen and len(seen) == STEPS


def test_early_stopping_goes_back_to_the_structure_of_the_best_weights():
    after = []
    net = fitted(
        Rewire(every=2, until=1.0),
        epochs=12,
        early_stopping=True,
        patience=3,
        validation_fraction=0.2,
        callbacks=[lambda net, record: after.append(net.model_.layers[0].weight)],
    )
    best = 0
    for epoch, record in enumerate(net.history_):
        if record["validation_score"] > net.history_[best]["validation_score"] + validation.TOLERANCE:
            best = epoch
    found = net.model_.layers[0].weight
    np.testing.assert_array_equal(found.indices, after[best].indices)
    np.testing.assert_array_equal(found.values, after[best].values)
    assert best < len(after) - 1 and not np.array_equal(found.indices, after[-1].indices)


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in ("emulated", "cuda") if problem(name) is None])
@pytest.mark.parametrize("until, times", [(1.0, 4), (0.4, 1)])
def test_recorded_passes_do_not_hide_what_is_rewired(name, until, times, asked, monkeypatch):
    """Steps of a network that is rewired are launched one by one, those after the last rewiring are recorded: the same
    structure as on the CPU."""
    replayed = []

    def replay(self, original=graph.Graph.replay):
        replayed.append(self)
        original(self)

    monkeypatch.setattr(graph.Graph, "replay", replay)
    rng = np.random.default_rng(0)
    x, y, found = rng.standard_normal((24, 12)).astype(np.float32), np.arange(24) % 3, []
    for device in ("cpu", name):
        net = Net(
            [SparseLinear(12, 9, density=0.25, rng=0), ReLU(), Linear(9, 3, rng=1)],
            epochs=3,
            batch_size=8,
            device=device,
            random_state=0,
            sparsity=Rewire(every=2, until=until),
        ).fit(x, y)
        found.append(net.model_.layers[0].weight)
    np.testing.assert_array_equal(found[0].indices, found[1].indices)
    np.testing.assert_allclose(found[0].values, found[1].values, rtol=1e-3, atol=1e-5)
    assert len(asked) == 2 * times and bool(replayed) == (until < 1)


def test_an_interrupted_fit_leaves_no_activations(monkeypatch):
    def after_update(self, run, original=Rewiring.after_update):
        if run.epoch == 1:
            raise KeyboardInterrupt
        original(self, run)

    monkeypatch.setattr(Rewiring, "after_update", after_update)
    net = Net(layers(), epochs=8, random_state=0, sparsity=Rewire(every=2))
    with pytest.raises(KeyboardInterrupt):
        net.fit(X, Y)
    assert net.n_iter_ == 1 and [layer.trace for layer in net.model_.layers[:3:2]] == [None, None]


class Breaks(Hook):
    """Makes values, or the samples of a step, non-finite in the third epoch."""

    watches = False

    def __init__(self, what):
        self.what = what

    def epoch_start(self, run, epoch):
        self.now = epoch == 2
        if self.now and self.what == "values":
            values = run.model.layers[2].values
            values.assign(np.full(values.shape, np.nan, np.float32))

    def before_step(self, run, batch):
        if self.now and self.what == "samples":
            return batch._replace(inputs=run.dev.affine(batch.inputs, mul=math.nan))
        return batch


@pytest.mark.parametrize("what", ["values", "samples"])
def test_a_fit_that_diverges_keeps_its_epochs(what):
    with pytest.warns(UserWarning, match="the fit ended with the weights of epoch 2"):
        net = fitted(Rewire(every=1), callbacks=[Breaks(what)])
    weights = [layer.weight for layer in net.model_.layers[:3:2]]
    assert net.n_iter_ == 2 and all(np.isfinite(weight.values).all() for weight in weights)


@pytest.mark.parametrize(
    "make, message",
    [
        (lambda: Rewire(share=0), r"share must be a number in \(0, 1\], got 0"),
        (lambda: Rewire(until=2), "until must be"),
        (lambda: Rewire(every=0), "every must be a positive integer, got 0"),
        (lambda: Rewire(every=1.5), "every must be"),
        (lambda: Net((8,), epochs=1, sparsity=Rewire()).fit(X, Y), "there is no trainable SparseLinear of single entries"),
        (
            lambda: Net([SparseLinear(64, 10, weight=BSR.from_dense(np.ones((10, 64)), 8))], epochs=1, sparsity=Rewire()).fit(
                X, Y
            ),
            "there is no trainable SparseLinear of single entries",
        ),
        (
            lambda: Net([SQUARE, ReLU(), SQUARE, ReLU(), Linear(64, 10)], epochs=1, sparsity=Rewire()).fit(X, Y),
            r"SparseLinear\(64, 64, density=0.1\) is used more than once",
        ),
    ],
)
def test_misuse_is_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
