"""fit(batches=...): each batch is a step, classes and scales are those of all batches, bad batches are refused."""

import contextlib
import copy

import numpy as np
import pytest
from scipy.sparse import csr_matrix

from numbanet import AdaptiveAvgPool2d, CrossEntropy, Hook, Net, NetRegressor, Tensor
from numbanet.dropout import RowSensitiveDropout
from numbanet.layers import LSTM, BatchNorm1d, Conv2d, Embedding, Flatten, LastStep, Linear, MaxPool2d, ReLU, Sequential
from numbanet.training.large import mapped, rows
from numbanet.training.recorder import Recorder
from tests.resuming.stopped import alone

rng = np.random.default_rng(0)
X = rng.standard_normal((300, 64)).astype(np.float32)
Y = np.argmax(X[:, :3] + 0.5 * rng.standard_normal((300, 3)), 1)
WORDS = rng.integers(1, 17, (300, 6))
BASE = {"epochs": 3, "random_state": 0, "device": "cpu"}


def cut(*arrays, size=50):
    """Batches of `size` samples."""
    return [tuple(array[first : first + size] for array in arrays) for first in range(0, len(arrays[0]), size)]


def same(net, other):
    for name, array in net.model_.state_dict().items():
        np.testing.assert_array_equal(other.model_.state_dict()[name], array, err_msg=name)


class Ordered(Net):
    """Net without a random order of samples."""

    def _new_streams(self):
        streams = super()._new_streams()
        return streams._replace(rows=Unshuffled())


class Unshuffled:
    """A generator that permutes nothing."""

    class bit_generator:
        state = None

    def permutation(self, n):
        return np.arange(n)


def convolutions():
    return [Conv2d(1, 16, 3, padding=1, rng=0), ReLU(), MaxPool2d(2), Flatten(), Linear(256, 3, rng=1)]


def sequences():
    return [Embedding(17, 8, rng=0), LSTM(8, 16, batch_first=True, rng=1), LastStep(), Linear(16, 3, rng=2)]


CASES = {
    "rdp": ({"layers": (32, 32), "dropout": "rdp"}, X),
    "adam": ({"layers": (32,), "optimizer": "adam", "learning_rate_schedule": "cosine"}, X),
    "rsdp": ({"layers": convolutions(), "dropout": RowSensitiveDropout(0.5, contrast=0)}, X.reshape(-1, 1, 8, 8)),
    "lstm": ({"layers": sequences()}, WORDS),
}


@pytest.mark.parametrize("name", CASES)
def test_batches_train_as_the_same_samples_in_this_order(name):
    options, samples = CASES[name]
    if name == "rsdp":  # thresholds are computed from other samples, which matters to no choice without contrast
        options = {**options, "dropout": options["dropout"].changed(_given={0: 1.0}, thresholds={0: 1.0})}
    net = Ordered(**{**BASE, **options}, batch_size=50).fit(samples, Y)
    other = Net(**{**BASE, **options}).fit(batches=cut(samples, Y))
    same(net, other)
    assert [record["score"] for record in net.history_] == [record["score"] for record in other.history_]
    np.testing.assert_allclose([r["loss"] for r in other.history_], [r["loss"] for r in net.history_], rtol=1e-6)


def test_weights_classes_and_unequal_batches():
    weights = np.linspace(0, 2, 300)
    net = Ordered((16,), **BASE, batch_size=50, class_weight={0: 2.0}).fit(X, Y, weights)
    same(net, Net((16,), **BASE, class_weight={0: 2.0}).fit(batches=cut(X, Y, weights)))
    order = np.argsort(Y, kind="stable")  # most batches have one class
    net = Net((16,), **BASE).fit(batches=[(X[order[:77]], Y[order[:77]]), (X[order[77:]], Y[order[77:]])])
    assert net.classes_.tolist() == [0, 1, 2] and net.n_iter_ == 3 and len(net.predict(X)) == 300


def test_targets_of_a_regressor_are_standardised_by_all_batches():
    y = 100 + 5 * X[:, 0]
    net = NetRegressor((16,), **BASE).fit(batches=cut(X, y))
    np.testing.assert_allclose(net.target_mean_, y.mean(), rtol=1e-6)
    np.testing.assert_allclose(net.target_scale_, y.std(), rtol=1e-6)


def test_initial_biases_are_those_of_all_batches():
    """Of batches that are sorted by class; also if the first ones, which are examples, have weight 0."""
    X, y = np.ones((3000, 4), np.float32), np.repeat([0, 1], [1800, 1200])
    options = {"epochs": 1, "learning_rate": 1e-12, "random_state": 0}
    for weights, shares in ((None, [1801, 1201]), (np.float32(y), [1, 1201])):
        net = Net((8,), **options).fit(batches=cut(*(part for part in (X, y, weights) if part is not None)))
        bias = np.float64(net.model_[-1].bias.numpy())
        np.testing.assert_allclose(np.exp(bias) / np.exp(bias).sum(), np.divide(shares, sum(shares)), rtol=1e-5)


def test_a_function_of_the_epoch_is_called_for_each():
    asked = []

    def batches(epoch):
        asked.append(epoch)
        yield from cut(X, Y)

    net = Net((16,), **BASE).fit(batches=batches, validation=(X, Y))
    assert asked == [0, 0, 0, 1, 2] and len(net.history_) == 3  # read once before, and an example
    same(net, Net((16,), **BASE).fit(batches=cut(X, Y), validation=(X, Y)))


def test_early_stopping_takes_the_validation_samples():
    net = Net((16,), **{**BASE, "epochs": 50}, early_stopping=True, patience=2)
    assert net.fit(batches=cut(X, Y), validation=(X, Y)).best_epoch_ is not None
    with pytest.raises(ValueError, match="early_stopping has no samples to hold out"):
        net.fit(batches=cut(X, Y))


def test_a_fit_on_batches_goes_on_from_a_checkpoint(tmp_path):
    def batches(epoch):
        order = np.random.default_rng(epoch).permutation(len(X))
        return cut(X[order], Y[order])

    net = Net((16,), **BASE, dropout="rdp").fit(batches=batches, checkpoint=tmp_path, every=4, keep=9)
    for path in sorted(tmp_path.iterdir())[2:]:
        path.unlink()
    other = Net.resume(tmp_path).fit(batches=batches)
    same(net, other)
    assert [record["loss"] for record in net.history_] == [record["loss"] for record in other.history_]
    with pytest.raises(ValueError, match="data are not those"):
        Net.resume(tmp_path, epochs=5).fit(batches=cut(X, Y))


def test_texts_are_the_same_in_each_reading(tmp_path):
    def batches(epoch):
        return cut(X, np.array([f"class {label}" for label in Y], object))  # at other addresses

    net = Net((16,), **BASE).fit(batches=batches, checkpoint=tmp_path, every=4, keep=9)
    for path in sorted(tmp_path.iterdir())[2:]:
        path.unlink()
    same(net, Net.resume(tmp_path).fit(batches=batches))
    with pytest.raises(ValueError, match="data are not those"):
        Net.resume(tmp_path).fit(batches=lambda epoch: [(x, y[::-1]) for x, y in batches(epoch)])


def test_only_some_batches_are_alive_at_a_time():
    alive, most = set(), []

    class Watched(np.ndarray):
        def __array_finalize__(self, source):
            alive.add(id(self))

        def __del__(self):
            alive.discard(id(self))

    def batches(epoch):
        for first in range(0, 300, 10):
            yield X[first : first + 10].copy().view(Watched), Y[first : first + 10]
            most.append(len(alive))

    Net((16,), **BASE).fit(batches=batches)
    assert max(most) < 12


@pytest.mark.parametrize(
    "options, given, named",
    [
        ({}, {"batches": iter(cut(X, Y))}, "iterator, which can be read only once"),
        ({}, {"batches": []}, "there is none"),
        ({}, {"batches": 5}, "batches must be a list"),
        ({}, {"batches": [X]}, "got ndarray"),
        ({}, {"batches": cut(X, Y), "X": X}, "either X and y, or batches"),
        ({}, {"batches": [(X, Y), (X[:, 1:], Y)]}, "features"),
        ({}, {"batches": [(X, Y), (np.full_like(X, np.nan), Y)]}, "NaN"),
        ({}, {"batches": [(X, Y), (X, Y, np.ones(300))]}, "some have sample_weight and some have none"),
        ({}, {"batches": cut(X, Y, np.zeros(300))}, "must not be zero|non-zero"),
        ({}, {"batches": cut(X, np.zeros(300, int))}, "only one class"),
        ({"class_weight": "balanced"}, {"batches": cut(X, Y)}, "class_weight='balanced' counts all samples"),
    ],
)
def test_bad_batches_are_refused(options, given, named):
    net = Net((16,), **BASE, **options)
    with pytest.raises(ValueError, match=named):
        net.fit(**given)
    assert not hasattr(net, "model_")


def test_a_batch_that_changes_between_passes_undoes_the_fit():
    calls = []

    def batches(epoch):
        calls.append(epoch)
        return cut(X, Y) if len(calls) < 3 else cut(X, Y + 5)

    net = Net((16,), **BASE, loss=CrossEntropy())
    with pytest.raises(ValueError, match="labels that are not among the classes"):
        net.fit(batches=batches)
    assert not hasattr(net, "model_")


def test_fit_without_data_says_so():
    with pytest.raises(ValueError, match="fit: give either X and y, or batches"):
        Net((16,)).fit()


def recurrent(features, *after):
    return [LSTM(features, 8, batch_first=True, rng=0), LastStep(), *after, Linear(8, 3, rng=1)]


def of_lengths(kind, lengths=(5, 7, 5, 3, 9, 7)):
    """Batches of sequences whose length differs: symbols with padding, or values."""
    if kind == "values":
        return [(rng.standard_normal((40, steps, 3)).astype(np.float32), rng.integers(0, 3, 40)) for steps in lengths]
    words = [rng.integers(1, 17, (40, steps)) * (np.arange(steps) < rng.integers(2, steps + 1, (40, 1))) for steps in lengths]
    return [(each, rng.integers(0, 3, 40)) for each in words]


LAYERS = {"values": recurrent(3), "symbols": [Embedding(17, 8, padding_idx=0, rng=2), *recurrent(8)]}


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
@pytest.mark.parametrize("kind", LAYERS)
def test_sequences_may_have_another_length_in_each_batch(kind, optimizer):
    batches = of_lengths(kind)
    options = {**BASE, "epochs": 4, "optimizer": optimizer}
    net = Net(LAYERS[kind], **options).fit(batches=batches, validation=of_lengths(kind, (8,))[0])
    other = Ordered(LAYERS[kind], **options, batch_size=40)
    for _ in range(4):
        for x, y in batches:
            other.partial_fit(x, y, classes=range(3))
    for name, array in net.model_.state_dict().items():
        np.testing.assert_allclose(array, other.model_.state_dict()[name], atol=1e-6, err_msg=name)
    assert net.n_iter_ == 4 and [len(net.predict(x)) for x, _ in batches] == [40] * 6
    kept = copy.deepcopy(net)
    same(net.fit(batches=batches), kept)  # whatever the network before took
    with pytest.raises(ValueError, match="expects|takes integers"):
        net.fit(batches=[*batches, (np.zeros((4, 6, 2), np.float32), np.arange(4) % 3)])


@pytest.mark.parametrize("dropout", ["rdp", "window"])
@pytest.mark.parametrize("kind", LAYERS)
def test_batches_of_several_lengths_go_on_from_a_checkpoint(kind, dropout, tmp_path):
    batches = of_lengths(kind)
    net = Net(LAYERS[kind], **BASE, dropout=dropout).fit(batches=batches, checkpoint=tmp_path / "all", every=4, keep=9)
    same(net, Net.resume(alone(tmp_path / "all", 1, tmp_path / "one")).fit(batches=batches))
    same(net, Net(LAYERS[kind], **BASE, dropout=dropout, warm_start=True).fit(batches=batches))


def test_steps_of_many_lengths_hold_bounded_memory(monkeypatch):
    """Beyond it they are not recorded, which changes nothing."""
    held = []

    def train():
        return Net(LAYERS["values"], **BASE, callbacks=[Held()]).fit(batches=of_lengths("values", range(3, 11)))

    class Held(Hook):
        def epoch_recorded(self, run, record):
            held.append(sum(array.nbytes for (name, *_), array in run.stepper.recorder._inputs.items() if name == "x"))

    rng.bit_generator.state = state = rng.bit_generator.state
    whole = train()
    monkeypatch.setattr(Recorder, "FEW", 2)
    monkeypatch.setattr(Recorder, "HELD", 40 * 12 * 3 * 4)
    rng.bit_generator.state = state
    few = train()
    assert held == [40 * sum(range(3, 11)) * 3 * 4] * 3 + [40 * 12 * 3 * 4] * 3
    for name, array in whole.model_.state_dict().items():
        np.testing.assert_allclose(array, few.model_.state_dict()[name], atol=1e-6, err_msg=name)


def test_images_may_have_another_size_in_each_batch():
    layers = [Conv2d(1, 4, 3, rng=0), ReLU(), AdaptiveAvgPool2d(1), Flatten(), Linear(4, 2, rng=1)]
    images = [rng.standard_normal((20, 1, side, side)).astype(np.float32) for side in (8, 10, 6)]
    net = Net(layers, **BASE, dropout="rsdp").fit(batches=[(x, np.arange(20) % 2) for x in images])
    assert [len(net.predict(x)) for x in images] == [20] * 3


def test_warm_started_and_regressing_networks_take_several_lengths():
    batches = [(x, y, np.linspace(0, 1, 40)) for x, y in of_lengths("values")]
    net = Net(LAYERS["values"], **BASE, warm_start=True).fit(*batches[1])
    assert net.fit(batches=batches).n_iter_ == 3 and net.input_shape_ == (7, 3)
    two = [(x, np.stack([x.mean((1, 2)), x[:, 0, 0], x[:, 1, 1]], 1)) for x, _ in of_lengths("values")]
    net = NetRegressor(LAYERS["values"], **BASE).fit(batches=two)
    np.testing.assert_allclose(net.target_mean_, np.concatenate([y for _, y in two]).mean(0), rtol=1e-5)


def test_running_values_are_those_of_the_first_length():
    batches = of_lengths("values", (5, 6) * 8)
    layers = recurrent(3, BatchNorm1d(8))
    net = Net(layers, **BASE, dropout="rdp").fit(batches=batches)
    inner = np.concatenate([Sequential(net.model_.layers[:2])(Tensor(x)).numpy() for x, _ in batches[::2]])
    np.testing.assert_allclose(net.model_.layers[2].running_mean.numpy(), inner.mean(0), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "layers, shapes, named",
    [
        ([Flatten(), Linear(15, 3)], [(5, 3), (6, 3)], r"samples of shape \(6, 3\), and Net expects \(5, 3\)"),
        ([Flatten()], [(1, 3), (2, 3)], r"samples of shape \(2, 3\), and Net expects \(1, 3\)"),
        (recurrent(3), [(5, 3), (5, 4)], r"samples of shape \(5, 4\), and Net expects \(5, 3\)"),
        (recurrent(3), [(5, 3), (3,)], r"samples of shape \(3,\), and Net expects \(5, 3\)"),
    ],
)
def test_samples_that_the_layers_do_not_take_are_refused(layers, shapes, named):
    net = Net(layers, **BASE)
    for _ in range(2):
        with pytest.raises(ValueError, match=named):
            net.fit(batches=[(np.zeros((6, *shape), np.float32), np.arange(6) % 3) for shape in shapes])
        assert not hasattr(net, "model_")


def test_targets_of_different_shapes_are_refused():
    steps = [(x, np.ones(x.shape[:2], int)) for x, _ in of_lengths("values")]
    layers = [LSTM(3, 8, batch_first=True, rng=0), Linear(8, 3, rng=1)]
    with pytest.raises(ValueError, match=r"different shapes, \(3,\), \(5,\).*call partial_fit for each batch"):
        Net(layers, **BASE).fit(batches=steps)
    with pytest.raises(ValueError, match=r"different shapes, \(\), \(2,\)"):
        NetRegressor((16,), **BASE).fit(batches=[(X, Y), (X, np.stack([Y, Y], 1))])


def test_batches_without_weight_are_left_out():
    """A batch whose samples have weight 0, or a class that class_weight leaves out, changes nothing."""
    batches = [(x, y, np.ones(len(y))) for x, y in cut(X, Y)]
    alone = Net((16,), **BASE).fit(batches=batches)
    same(alone, Net((16,), **BASE).fit(batches=[*batches, (X[:7], Y[:7], np.zeros(7))]))
    first = [(X[Y == 2], Y[Y == 2])]
    same(
        Net((16,), **BASE, class_weight={2: 0.0}).fit(batches=cut(X, Y) + first),
        Net((16,), **BASE, class_weight={2: 0.0}).fit(batches=cut(X, Y)),
    )
    with pytest.raises(ValueError, match="leaves every sample with weight 0"):
        Net((16,), **BASE, class_weight={0: 0.0, 1: 0.0, 2: 0.0}).fit(batches=cut(X, Y))


def test_an_epoch_without_batches_is_refused():
    net = Net((16,), **BASE)
    with pytest.raises(ValueError, match="in epoch 3 there is none"):
        net.fit(batches=lambda epoch: cut(X, Y) if epoch < 2 else [])
    assert not hasattr(net, "model_")
    iterator = iter(cut(X, Y))
    with pytest.raises(ValueError, match="second reading gave none"):
        net.fit(batches=lambda epoch: iterator)


def test_running_values_are_those_of_many_samples_if_batches_are_small():
    """As many samples are examples as a fit in memory reads; images of which few fit in memory, fewer."""
    layers = [Linear(64, 64, rng=0), BatchNorm1d(64), ReLU(), Linear(64, 3, rng=1)]
    net = Net(layers, **BASE, dropout="rdp").fit(batches=cut(X, Y, size=20))
    inner = np.asarray(net.model_.layers[0](Tensor(X)).numpy(), np.float64)
    np.testing.assert_allclose(net.model_.layers[1].running_mean.numpy(), inner.mean(0), rtol=1e-3, atol=1e-3)


def test_many_classes_lead_to_no_warning_for_each_batch(recwarn):
    Net((16,), **BASE).fit(batches=cut(np.tile(X, (2, 1)), np.arange(600) % 60, size=80))
    assert not [warning for warning in recwarn if "unique classes" in str(warning.message)]


def test_large_batches_train_as_dense_ones(tmp_path, monkeypatch):
    """What would be read in parts if it were all samples, sparse matrices and memory-mapped arrays, is read as a whole."""
    few = np.where(X > 1, X, 0)
    np.save(tmp_path / "X.npy", few)
    dense = Net((16,), **BASE, dropout="rdp").fit(batches=cut(few, Y, size=150))
    monkeypatch.setattr(rows, "LEAST", 1)
    monkeypatch.setattr(mapped, "FEW", 100)
    for large in (csr_matrix(few), np.load(tmp_path / "X.npy", mmap_mode="r")):
        batches = [(large[:150], Y[:150]), (large[150:], Y[150:])]
        same(dense, Net((16,), **BASE, dropout="rdp").fit(batches=batches))


@pytest.mark.parametrize("shuffled", [False, True])
def test_checkpoints_need_batches_that_come_in_the_same_order_again(tmp_path, shuffled):
    order = np.random.default_rng(0)

    class Loader:
        def __iter__(self):
            rows = order.permutation(300) if shuffled else np.arange(300)
            return iter(cut(X[rows], Y[rows]))

    net = Net((16,), **BASE)
    with pytest.raises(ValueError, match="came in another order") if shuffled else contextlib.nullcontext():
        net.fit(batches=Loader(), checkpoint=tmp_path / "run")
    assert (tmp_path / "run").exists() == hasattr(net, "model_") != shuffled


def test_other_batches_of_an_epoch_are_refused_by_a_fit_that_goes_on(tmp_path):
    def batches(turned):
        return lambda epoch: cut(X, Y)[:: -1 if epoch == turned else 1]

    net = Net((16,), **BASE).fit(batches=batches(None), checkpoint=tmp_path / "all", every=4, keep=9)
    within = alone(tmp_path / "all", 1, tmp_path / "one")  # after two of six steps of the second epoch
    same(net, Net.resume(within).fit(batches=batches(None)))
    within = alone(tmp_path / "all", 1, tmp_path / "one")
    with pytest.raises(ValueError, match="are now others"):
        Net.resume(within).fit(batches=batches(1))
