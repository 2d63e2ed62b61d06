"""Several ranks train as one process does with the joint batch. Ranks are threads here; `test_mpi` has processes."""

import numpy as np
import pytest

from numbanet import (
    BatchNorm1d,
    BatchNorm2d,
    Conv2d,
    Flatten,
    LanguageModel,
    Linear,
    MaxPool2d,
    Net,
    NetRegressor,
    ReLU,
    Rewire,
    SparseLinear,
)
from numbanet.dropout import BatchwiseDropout, BlockSensitiveDropout, DynamicSparseGraph, RowSensitiveDropout
from numbanet.estimators.classes import prior
from numbanet.parallel import current, joint_scores, run_ranks
from numbanet.parallel.checks import digest
from numbanet.plans import IndexPlan

RNG = np.random.default_rng(0)
X, IMAGES = RNG.standard_normal((644, 20)).astype(np.float32), RNG.standard_normal((257, 1, 28, 28)).astype(np.float32)
Y, LABELS = X[:, :3].argmax(1), RNG.integers(0, 10, 257)
WORDS = RNG.integers(0, 30, 2400)
WORDS[1::2] = (WORDS[::2] * 7 + 3) % 30
SETTINGS = {"random_state": 0, "device": "cpu"}


def mlp(ranks, **more):
    net = Net((64, 64), epochs=5, parallel=ranks, **{"batch_size": 64, "learning_rate": 0.05, **SETTINGS, **more})
    return net.fit(X, Y, validation=(X[:101], Y[:101]))


def weighted(ranks, **more):
    """An early stop, weights of samples, and a last batch of 3 rows."""
    settings = {"early_stopping": True, "class_weight": "balanced", "parallel": ranks, **SETTINGS, **more}
    return Net((32,), epochs=6, batch_size=72, **settings).fit(X, Y, sample_weight=np.linspace(0, 1, 644))


def normed(ranks, **more):
    layers = [Linear(20, 64, rng=1), BatchNorm1d(64), ReLU(), Linear(64, 32, rng=2), ReLU(), Linear(32, 3, rng=3)]
    return Net(layers, epochs=5, batch_size=64, parallel=ranks, **SETTINGS, **more).fit(X, Y)


def images(ranks, **more):
    layers = [Conv2d(1, 6, 5, rng=1), BatchNorm2d(6), ReLU(), MaxPool2d(2), Flatten(), Linear(864, 10, rng=2)]
    net = Net(layers, epochs=3, batch_size=63, learning_rate=0.005, parallel=ranks, **SETTINGS, **more)
    return net.fit(IMAGES, LABELS)


def lenet(ranks, **more):
    net = Net("lenet5", epochs=10, batch_size=64, learning_rate=0.005, parallel=ranks, **SETTINGS, **more)
    return net.fit(IMAGES, LABELS, validation=(IMAGES[:50], LABELS[:50]))


def language(ranks, **more):
    model = LanguageModel((32,), epochs=2, batch_size=12, steps=8, parallel=ranks, **SETTINGS, **more)
    return model.fit(WORDS, validation=WORDS[:500])


def regressor(ranks, **more):
    return NetRegressor((32,), epochs=5, batch_size=64, parallel=ranks, **SETTINGS, **more).fit(X, X[:, :2] ** 2)


def in_sets(ranks, **more):
    """Sets of 23 samples, which are those of one rank, also if there are two or four."""
    policy = DynamicSparseGraph(0.5, share="tile", group=23)
    return mlp(ranks, dropout=policy, batch_size=92, **more)


def rewired(ranks, **more):
    layers = [
        SparseLinear(20, 48, density=0.25, rng=1),
        ReLU(),
        SparseLinear(48, 32, density=0.2, rng=2),
        ReLU(),
        Linear(32, 3, rng=3),
    ]
    settings = {"sparsity": Rewire(every=4), "parallel": ranks, **SETTINGS, **more}
    return Net(layers, epochs=5, batch_size=64, learning_rate=0.05, **settings).fit(X, Y)


def alike(ranks, kind, **more):
    """All images drop the same, which depends on the number of the layer alone."""
    policy = kind(0.4, together=128, contrast=0.0)
    choose = policy.choose_from_flow
    policy.choose_from_flow = lambda site, flow, layer, rng: choose(site, flow, layer, np.random.default_rng(site.number))
    net = Net("lenet5", epochs=10, batch_size=63, learning_rate=0.005, dropout=policy, parallel=ranks, **SETTINGS, **more)
    return net.fit(IMAGES, LABELS)


@pytest.fixture(autouse=True)
def equal_before_they_are_made_so(monkeypatch):
    """At the end of a fit all ranks take the weights of the first one: before that, they have the same bits already."""

    def check(model):
        team = current.get()
        assert team is None or len(set(team.gather(digest(model)))) == 1, "ranks have other weights"

    monkeypatch.setattr("numbanet.estimators.whole.equalise", check)


def tensors(net):
    return {name: tensor.numpy() for name, tensor, _ in net.model_.named()}


class Loud(BatchwiseDropout):
    """A policy of a user: keeps the neurons whose weights answer loudest to the batches of all ranks."""

    name, data_dependent, agrees = "loud", True, True

    def plan(self, site, rng):
        return None

    def choose(self, site, x, w, rng):
        loud = joint_scores(x.device, np.abs(x.numpy() @ w.numpy().T).sum(0))
        return IndexPlan(len(loud), np.sort(np.argsort(loud)[-(len(loud) // 2) :]), 2.0)


CASES = {
    "sgd": (mlp, {}),
    "rdp": (mlp, {"dropout": "rdp"}),
    "tdp": (mlp, {"dropout": "tdp"}),
    "batchwise": (mlp, {"dropout": "batchwise"}),
    "window": (mlp, {"dropout": "window"}),
    "adam": (mlp, {"optimizer": "adam", "learning_rate": 0.001}),
    "adam, rdp": (mlp, {"dropout": "rdp", "optimizer": "adam", "learning_rate": 0.001}),
    "adam, tdp": (mlp, {"dropout": "tdp", "optimizer": "adam", "learning_rate": 0.001}),
    "adam, batchwise": (mlp, {"dropout": "batchwise", "optimizer": "adam", "learning_rate": 0.001}),
    "clipped": (mlp, {"dropout": "rdp", "clip_norm": 0.1}),
    "weighted": (weighted, {}),
    "batch norm": (normed, {"dropout": "rdp"}),
    "batch norm of images": (images, {"dropout": "rdp"}),
    "lenet": (lenet, {"dropout": "rdp"}),
    "language": (language, {"dropout": "batchwise"}),
    "language, tied, adam": (language, {"dropout": "rdp", "tied": True, "optimizer": "adam", "clip_norm": None}),
    "language, gates": (language, {"gate_sparsity": 0.5}),
    "dsg": (mlp, {"dropout": "dsg"}),
    "of a user": (mlp, {"dropout": Loud(0.5)}),
    "dsg of sets": (in_sets, {}),
    "rsdp": (alike, {"kind": RowSensitiveDropout}),
    "bsdp": (alike, {"kind": BlockSensitiveDropout}),
    "regression": (regressor, {"dropout": "rdp"}),
    "rewired": (rewired, {}),
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:tdp:UserWarning", "ignore:dsg:UserWarning", "ignore:fit:UserWarning")
@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
@pytest.mark.parametrize("case", CASES)
def test_ranks_equal_one_process(case, size):
    """Weights after 50 steps or so, to 1e-5 of the largest one of a tensor; equal bits on all ranks; and the same figures."""
    make, more = CASES[case]
    alone, *nets = make(None, **more), *run_ranks(size, lambda ranks: make(ranks, **more))
    for name, expected in tensors(alone).items():
        found = [tensors(net)[name] for net in nets]
        assert all(np.array_equal(found[0], other) for other in found[1:]), name
        np.testing.assert_allclose(found[0], expected, rtol=0, atol=1e-5 * max(1, np.abs(expected).max()), err_msg=name)
    assert [net.n_iter_ for net in nets] == [alone.n_iter_] * size
    for ours, theirs in zip(nets[-1].history_, alone.history_, strict=True):
        for name in ("loss", "score", "flops_share", "validation_loss", "validation_score", "learning_rate"):
            if name in theirs:
                assert ours[name] == pytest.approx(theirs[name], rel=1e-3, abs=1e-4), name


def test_ranks_draw_different_bits_for_their_samples():
    """Plans that keep other elements for each sample differ, so that the ranks do not train on the same noise."""
    keys = {}

    def fit(ranks):
        from numbanet.training.stepper import Stepper

        def draw(self, following=False):
            plans = original(self, following)
            keys.setdefault(ranks.rank, []).extend(plan.key for plan in plans.assigned.values())
            return plans

        original, own = Stepper.draw, type("Own", (Stepper,), {"draw": draw})
        net = Net((8,), dropout="bernoulli", epochs=1, batch_size=322, parallel=ranks, **SETTINGS)
        net._run = lambda *given: changed(type(net)._run(net, *given), own)
        return net.fit(X, Y)

    def changed(run, kind):
        run.stepper.__class__ = kind
        return run

    nets = run_ranks(2, fit)
    assert len(keys[0]) == len(keys[1]) > 1 and not set(keys[0]) & set(keys[1])
    assert all(np.array_equal(a, b) for a, b in zip(*map(lambda net: tensors(net).values(), nets)))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:dsg:UserWarning")
@pytest.mark.parametrize("dropout", ["rsdp", "bsdp", "dsg"])
def test_ranks_that_choose_by_their_images_train_one_network(dropout):
    """rsdp and bsdp drop other rows on each rank; of dsg, the windows that are looked at are not those of one process."""
    bright, quadrant = IMAGES.reshape(-1, 2, 14, 2, 14).copy(), LABELS % 4
    bright[range(len(LABELS)), quadrant // 2, :, quadrant % 2] += 1  # the label says which quarter is brighter

    def fit(ranks):
        settings = {"epochs": 12, "batch_size": 63, "learning_rate": 0.01, "dropout": dropout, **SETTINGS}
        return Net("lenet5", parallel=ranks, **settings).fit(bright.reshape(IMAGES.shape), quadrant)

    alone, *nets = fit(None), *run_ranks(2, fit)
    losses = [net.history_[-1]["loss"] for net in (alone, nets[0])]
    assert max(losses) < 0.8, losses  # 1.4 by chance


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:dsg:UserWarning", "ignore:fit:UserWarning")
@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize(
    "options",
    [
        {"dropout": DynamicSparseGraph(0.01), "batch_size": 5},  # all neurons are kept: not all ranks replay the same steps
        {"dropout": DynamicSparseGraph(0.5, share="sample"), "norm": True},
        {"dropout": DynamicSparseGraph(0.5, share="tile", group=16), "norm": True},
        {"dropout": DynamicSparseGraph(0.5), "norm": True},
        {"dropout": DynamicSparseGraph(0.5, threshold="shared", select_in_prediction=True)},
    ],
    ids=["all are kept", "of samples", "of sets", "of batches", "by a shared threshold"],
)
def test_ranks_that_choose_neurons_stay_equal(options, size):
    options = dict(options)
    norm = [BatchNorm1d(32)] if options.pop("norm", False) else []
    layers = [Linear(20, 32, rng=1), ReLU(), *norm, Linear(32, 32, rng=2), ReLU(), Linear(32, 3, rng=3)]
    settings = {"epochs": 3, "batch_size": 30, **SETTINGS, **options}

    def fit(ranks):
        return Net(layers, parallel=ranks, **settings).fit(X[:54], Y[:54], validation=(X[54:80], Y[54:80]))

    nets = run_ranks(size, fit)
    assert [record["loss"] for record in nets[0].history_] == [record["loss"] for record in nets[-1].history_]


@pytest.mark.slow
def test_thresholds_of_gates_are_those_of_all():
    nets = run_ranks(2, lambda ranks: language(ranks, gate_sparsity=0.5, gate_mode="threshold"))
    alone = language(None, gate_sparsity=0.5, gate_mode="threshold")
    for name, expected in tensors(alone).items():
        np.testing.assert_allclose(tensors(nets[0])[name], expected, atol=5e-3, err_msg=name)


@pytest.mark.parametrize("kind", [RowSensitiveDropout, BlockSensitiveDropout])
@pytest.mark.filterwarnings("ignore:fit:UserWarning")
def test_one_rank_chooses_as_one_process(kind):
    def fit(ranks):
        return Net("lenet5", epochs=1, batch_size=64, dropout=kind(0.5), parallel=ranks, **SETTINGS).fit(IMAGES, LABELS)

    for one, alone in zip(tensors(run_ranks(1, fit)[0]).values(), tensors(fit(None)).values(), strict=True):
        assert np.array_equal(one, alone)


@pytest.mark.filterwarnings("ignore:fit:UserWarning")
def test_ranks_choose_rows_of_their_own():
    """Not the same rows of other images, which would leave less noise."""
    seen = {}

    def fit(ranks):
        class Seen(RowSensitiveDropout):
            def choose_from_flow(self, site, flow, layer, rng):
                plan = super().choose_from_flow(site, flow, layer, rng)
                seen.setdefault(ranks.rank, []).append(np.array(plan.chosen))
                return plan

        return Net("lenet5", epochs=1, batch_size=64, dropout=Seen(0.5, contrast=0.0), parallel=ranks, **SETTINGS).fit(
            IMAGES, LABELS
        )

    run_ranks(2, fit)
    assert len(seen[0]) == len(seen[1]) > 0
    assert not any(np.array_equal(a, b) for a, b in zip(seen[0], seen[1]))


@pytest.mark.slow
def test_shards_hold_all_samples():
    """Each rank is given its own samples, or chooses them: all are trained on, and figures are those of all."""

    def given(ranks):
        rows = slice(ranks.rank, None, 3)
        net = Net((64,), epochs=8, batch_size=60, dropout="rdp", parallel=ranks, shard=True, **SETTINGS)
        return net.fit(X[rows], Y[rows])

    def chosen(ranks):
        net = Net((64,), epochs=8, batch_size=60, dropout="rdp", parallel=ranks, **SETTINGS)
        return net.set_params(shard=lambda rank, size: slice(rank, None, size)).fit(X, Y)

    nets = run_ranks(3, given) + run_ranks(3, chosen)
    for net in nets[1:]:
        assert all(np.array_equal(a, b) for a, b in zip(tensors(nets[0]).values(), tensors(net).values()))
    alone = Net((64,), epochs=8, batch_size=60, dropout="rdp", **SETTINGS).fit(X, Y)
    assert nets[0].history_[-1]["loss"] == pytest.approx(alone.history_[-1]["loss"], rel=0.2)
    assert abs(nets[0].score(X, Y) - alone.score(X, Y)) < 0.05


def test_shards_of_unequal_length_and_classes():
    """A rank with fewer samples than steps trains on; classes, and the mean and the deviation of y, are those of all."""
    rows = [np.flatnonzero(Y == 0)[:3], np.flatnonzero(Y != 0)]

    def fit(ranks):
        own = rows[ranks.rank]
        net = Net((8,), epochs=2, batch_size=40, parallel=ranks, shard=True, **SETTINGS).fit(X[own], Y[own])
        other = NetRegressor((8,), epochs=1, batch_size=40, parallel=ranks, shard=True, **SETTINGS).fit(X[own], X[own, 0])
        still = Net((8,), batch_size=40, parallel=ranks, shard=True, **{**SETTINGS, "epochs": 1, "learning_rate": 1e-12})
        return net, other, still.fit(X[own], Y[own]).model_[-1].bias.numpy()

    (net, other, bias), (net1, other1, bias1) = run_ranks(2, fit)
    every = np.concatenate(rows)
    assert net.classes_.tolist() == net1.classes_.tolist() == [0, 1, 2]
    assert all(np.array_equal(a, b) for a, b in zip(tensors(net).values(), tensors(net1).values()))
    np.testing.assert_allclose(other.target_mean_, X[every, 0].mean(), rtol=1e-5)
    np.testing.assert_allclose(other1.target_scale_, X[every, 0].std(), rtol=1e-5)
    assert np.array_equal(bias, bias1)
    np.testing.assert_allclose(bias, prior(Y[every], None, 3), rtol=1e-5)  # that of all samples


def test_shards_of_a_text():
    texts = ["the cat sat on the mat and the dog sat on the rug".split() * 20, "a bird sang in the tree".split() * 30]

    def fit(ranks):
        model = LanguageModel((8,), epochs=2, batch_size=4, steps=6, parallel=ranks, shard=True, **SETTINGS)
        return model.fit(texts[ranks.rank])

    models = run_ranks(2, fit)
    assert set(models[0].vocabulary_.words) == {*texts[0], *texts[1], "<unk>"}
    assert all(np.array_equal(a, b) for a, b in zip(*map(lambda model: tensors(model).values(), models)))


def test_partial_fit_goes_on_alike():
    def fit(ranks):
        net = Net((16,), batch_size=64, dropout="rdp", parallel=ranks, **SETTINGS)
        for _ in range(3):
            net.partial_fit(X, Y)
        return net

    alone, nets = fit(None), run_ranks(2, fit)
    for name, expected in tensors(alone).items():
        np.testing.assert_allclose(tensors(nets[1])[name], expected, atol=1e-5, err_msg=name)
