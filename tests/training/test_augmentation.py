"""Augmentation: training sees what is drawn from the stream of the rows, and nothing else does."""

import copy
import pickle

import numpy as np
import pytest
from sklearn.base import clone

from numbanet import Embedding, Flatten, FlipsAndCrops, Linear, Net, NetRegressor, ReLU, RowDropout, device
from numbanet.device import problem
from numbanet.training.recorder import Recorder
from numbanet.training.stepper import Stepper
from numbanet_kernels.families.augment import crop_flip_reference
from numbanet_kernels.runtime import graph


def images(n=12, shape=(2, 4, 5)):
    return np.random.default_rng(0).standard_normal((n, *shape)).astype(np.float32), np.arange(n) % 3


def net(augment, kind=Net, **options):
    layers = [Flatten(), Linear(40, 6, rng=0), ReLU(), Linear(6, 1 if kind is NetRegressor else 3, rng=1)]
    usual = {"epochs": 2, "batch_size": 4, "dropout": RowDropout(0.4, dp_max=2), "random_state": 0, "device": "cpu"}
    return kind(layers, augment=augment, **{**usual, **options})


def weights(fitted):
    return np.concatenate([p.numpy().ravel() for p in fitted.model_.parameters()])


class Watched:
    """An augmentation that keeps what it was given and what it gave."""

    def __init__(self, inner):
        self.inner, self.calls = inner, []

    def __call__(self, x, rng, dev):
        before = copy.deepcopy(rng)
        y = self.inner(x, rng, dev)
        self.calls.append((np.array(dev.download(x)), before, np.array(dev.download(y))))
        return y


# --- what is drawn ----------------------------------------------------------------------------------------------------
def test_moves_are_uniform_and_half_of_the_images_are_mirrored(rng):
    moves = FlipsAndCrops(padding=2).draw(20000, rng)
    assert moves.dtype == np.int32 and moves.shape == (20000, 3)
    for column in (0, 1):
        values, counts = np.unique(moves[:, column], return_counts=True)
        assert values.tolist() == [-2, -1, 0, 1, 2] and np.all(np.abs(counts - 4000) < 300)
    assert set(moves[:, 2]) == {0, 1} and abs(moves[:, 2].mean() - 0.5) < 0.02
    assert np.all(np.abs(np.corrcoef(moves.T) - np.eye(3)) < 0.04)
    assert not FlipsAndCrops(0, flip=False).draw(50, rng).any()


@pytest.mark.parametrize("padding", [-1, 1.5, True, None, "4"])
def test_a_padding_that_is_none_is_refused(padding):
    with pytest.raises(ValueError, match=rf"FlipsAndCrops\(padding={padding!r}, flip=True\): padding must be an integer"):
        FlipsAndCrops(padding)


# --- in training ------------------------------------------------------------------------------------------------------
@pytest.mark.slow
def test_every_batch_is_moved_by_what_the_rows_stream_draws(dev):
    x, y = images()
    watched = Watched(FlipsAndCrops(2))
    net(watched, device=dev.name).fit(x, y)
    assert len(watched.calls) == 6
    drawn = [watched.inner.draw(4, rng) for _, rng, _ in watched.calls]
    assert len({moves.tobytes() for moves in drawn}) == 6
    for (given, _, made), moves in zip(watched.calls, drawn, strict=True):
        np.testing.assert_array_equal(made, crop_flip_reference(given, moves))
    assert sorted(map(bytes, np.concatenate([given for given, *_ in watched.calls[:3]]))) == sorted(map(bytes, x))


def test_the_model_is_trained_on_what_is_made(dev):
    """From images of zeros the first weights learn nothing; and of one step the gradient is that of the images made."""
    x, y = images()
    blind = net(lambda x, rng, dev: dev.affine(x, mul=0.0), device=dev.name, dropout="none").fit(x, y)
    np.testing.assert_array_equal(blind.model_.layers[1].weight.numpy(), net(None).layers[1].weight.numpy())
    watched = Watched(FlipsAndCrops(2))
    ours = net(watched, device=dev.name, epochs=1, batch_size=12).fit(x, y)
    ((given, _, made),) = watched.calls
    order = [next(i for i in range(12) if np.array_equal(x[i], image)) for image in given]
    theirs = net(lambda x, rng, dev: dev.upload(made), device=dev.name, epochs=1, batch_size=12).fit(x, y)
    np.testing.assert_array_equal(weights(ours), weights(theirs))
    alone = net(None, epochs=1, batch_size=12).fit(made, y[order])
    np.testing.assert_allclose(weights(ours), weights(alone), rtol=1e-4, atol=1e-6)


def test_plans_are_those_without(monkeypatch):
    def plans(augment):
        drawn = []

        def draw(self, following=False, original=Stepper.draw):
            step = original(self, following)
            drawn.append(list(step.assigned.values()))
            return step

        with monkeypatch.context() as patch:
            patch.setattr(Stepper, "draw", draw)
            net(augment, epochs=4).fit(*images())
        return drawn

    assert len({str(step) for step in plans(None)}) > 1 and plans(None) == plans(FlipsAndCrops(2))


@pytest.mark.parametrize("kind", [Net, NetRegressor])
def test_prediction_and_validation_see_the_images(kind):
    x, y = images(30)
    watched = Watched(FlipsAndCrops(2))
    fitted = net(watched, kind, early_stopping=True, validation_fraction=0.2, batch_size=8).fit(x, y)
    fitted.predict(x), fitted.score(x, y)
    assert sum(len(given) for given, *_ in watched.calls) == 2 * 24  # two epochs of the samples that are trained on
    np.testing.assert_array_equal(fitted.predict(x), fitted.set_params(augment=None).predict(x))


def test_same_seed_same_result_and_not_that_without():
    x, y = images()
    fits = [net(augment).fit(x, y) for augment in (FlipsAndCrops(2), FlipsAndCrops(2), None)]
    np.testing.assert_array_equal(weights(fits[0]), weights(fits[1]))
    assert not np.array_equal(weights(fits[0]), weights(fits[2]))


@pytest.mark.parametrize("name", [name for name in ("cuda", "emulated") if problem(name) is None])
@pytest.mark.slow
def test_recorded_passes_see_each_batch_anew(monkeypatch, name):
    x, y = images()
    replays = []
    monkeypatch.setattr(graph.Graph, "replay", lambda self, original=graph.Graph.replay: replays.append(1) or original(self))
    ours = net(FlipsAndCrops(2), device=name, epochs=3).fit(x, y)
    assert len(replays) > 2
    monkeypatch.setattr(Recorder, "possible", property(lambda self: False, lambda self, value: None), raising=False)
    theirs = net(FlipsAndCrops(2), device=name, epochs=3).fit(x, y)
    np.testing.assert_array_equal(weights(ours), weights(theirs))
    assert [record["loss"] for record in ours.history_] == [record["loss"] for record in theirs.history_]


# --- as a parameter ---------------------------------------------------------------------------------------------------
def test_an_estimator_with_it_is_cloned_and_pickled():
    x, y = images()
    fitted = net(FlipsAndCrops(padding=2, flip=False)).fit(x, y)
    assert fitted.get_params()["augment"] == FlipsAndCrops(2, False) and "FlipsAndCrops(padding=2" in repr(fitted)
    twin, again = clone(fitted).fit(x, y), pickle.loads(pickle.dumps(fitted))
    np.testing.assert_array_equal(weights(twin), weights(fitted))
    np.testing.assert_array_equal(again.partial_fit(x, y).predict_proba(x), fitted.partial_fit(x, y).predict_proba(x))


def narrower(x, rng, dev):
    return dev.upload(np.ascontiguousarray(dev.download(x)[..., 1:]))


@pytest.mark.parametrize(
    "augment, message",
    [
        (3, "augment must be a function.*got 3"),
        ("flip", "augment must be a function"),
        (narrower, r"must give float32 \(4, 2, 4, 5\) as it was given, not float32 \(4, 2, 4, 4\)"),
        (lambda x, rng, dev: np.float64(dev.download(x)), "must give float32.*not float64"),
        (lambda x, rng, dev: None, "must give float32.*not NoneType"),
    ],
    ids=["a number", "a word", "another shape", "another dtype", "nothing"],
)
def test_what_does_not_fit_is_refused_and_the_net_is_as_before(augment, message):
    x, y = images()
    fitted = net(None).fit(x, y)
    before = weights(fitted)
    with pytest.raises(ValueError, match=message):
        fitted.set_params(augment=augment).fit(x, y)
    np.testing.assert_array_equal(weights(fitted), before)


def test_samples_that_are_no_images_are_refused():
    with pytest.raises(ValueError, match=r"FlipsAndCrops\(padding=4, flip=True\): samples of shape \(C, H, W\).*got \(6,\)"):
        Net((5,), augment=FlipsAndCrops(), device="cpu").fit(np.ones((8, 6)) * np.arange(8)[:, None], np.arange(8) % 2)
    with pytest.raises(ValueError, match="augment: .*cannot change integers"):
        Net([Embedding(9, 4, rng=0), Flatten(), Linear(8, 2, rng=0)], augment=FlipsAndCrops(), device="cpu", batch_size=4).fit(
            np.arange(18).reshape(9, 2) % 9, np.arange(9) % 2
        )


@pytest.mark.parametrize("padding", [6, 100])
def test_images_are_not_shifted_away(padding, rng):
    x, message = rng.standard_normal((8, 1, 6, 9)).astype(np.float32), r"must be smaller than the images, .* = \(1, 6, 9\)"
    shifts = FlipsAndCrops(padding)
    with pytest.raises(ValueError, match=rf"FlipsAndCrops\(padding={padding}, flip=True\): padding {message}"):
        Net([Flatten(), Linear(54, 2, rng=0)], augment=shifts, device="cpu").fit(x, np.arange(8) % 2)
    with pytest.raises(ValueError, match=message):
        shifts(x, rng, device("cpu"))


def test_the_op_of_the_device_is_the_one_used(rng):
    """x stays as it is: it may be the samples themselves."""
    x = rng.standard_normal((3, 1, 6, 6)).astype(np.float32)
    kept = x.copy()
    y = FlipsAndCrops(1)(x, np.random.default_rng(0), device("cpu"))
    assert y.shape == x.shape and not np.array_equal(x, y)
    np.testing.assert_array_equal(x, kept)
