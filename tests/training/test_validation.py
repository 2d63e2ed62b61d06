"""Validation: its loss and score, what they are watched by, learning rates that fall on a plateau, files of the best epoch."""

import math
import pickle

import numpy as np
import pandas as pd
import pytest
from sklearn.metrics import f1_score, log_loss, make_scorer

from numbanet import SGD, GroupLasso, Hook, LanguageModel, Linear, ModelCheckpoint, Net, NetRegressor, ReduceLROnPlateau, ReLU
from numbanet.datasets import load_digits
from numbanet.dropout import DynamicSparseGraph, EarlyDropout, WindowDropout
from numbanet.io.card import kept_epoch

X, Y, X_TEST, Y_TEST = load_digits()
SMALL = {"layers": (32, 32), "epochs": 3, "random_state": 0, "device": "cpu"}
WORDS = "the cat sat on the mat and the dog sat on the rug .".split() * 40
LANGUAGE = {"hidden": (8,), "epochs": 3, "batch_size": 4, "steps": 7, "random_state": 0, "device": "cpu"}


def figures(net, name):
    return [record[name] for record in net.history_]


def weights(net):
    return list(net.model_.state_dict().values())


def test_the_loss_of_validation_is_recorded_beside_its_score():
    seen = []
    net = Net(
        **SMALL,
        callbacks=[lambda net, record: seen.append((log_loss(Y_TEST, net.predict_proba(X_TEST)), net.score(X_TEST, Y_TEST)))],
    )
    net.fit(X, Y, validation=(X_TEST, Y_TEST))
    assert figures(net, "validation_loss") == pytest.approx([loss for loss, _ in seen], rel=1e-4)
    assert figures(net, "validation_score") == [score for _, score in seen]
    values = X[:, 20] * 3
    regressor = NetRegressor(**SMALL).fit(X, values, validation=(X_TEST, X_TEST[:, 20] * 3))
    error = ((regressor.predict(X_TEST) - X_TEST[:, 20] * 3) / regressor.target_scale_) ** 2
    assert regressor.history_[-1]["validation_loss"] == pytest.approx(error.mean(), rel=1e-4)
    model = LanguageModel(**LANGUAGE).fit(WORDS, validation=WORDS[:99])
    assert (
        model.history_[-1]["validation_loss"]
        == -model.history_[-1]["validation_score"]
        == pytest.approx(math.log(model.perplexity(WORDS[:99])))
    )


def test_held_out_samples_have_a_loss_too():
    net = Net(**SMALL, early_stopping=True).fit(X, Y)
    assert all(math.isfinite(loss) for loss in figures(net, "validation_loss"))


SCORERS = {
    "name": ("f1_macro", lambda net, X, y: f1_score(y, net.predict(X), average="macro")),
    "loss by name": ("neg_log_loss", lambda net, X, y: -log_loss(y, net.predict_proba(X))),
    "made": (make_scorer(f1_score, average="macro"), lambda net, X, y: f1_score(y, net.predict(X), average="macro")),
    "function": (lambda net, X, y: float(np.mean(net.predict(X) == y)), lambda net, X, y: net.score(X, y)),
}


@pytest.mark.parametrize("name", SCORERS)
def test_scoring_says_what_is_watched(name):
    scoring, formula = SCORERS[name]
    seen = []
    net = Net(**SMALL, scoring=scoring, callbacks=[lambda net, record: seen.append(formula(net, X_TEST, Y_TEST))])
    net.fit(X, Y, validation=(X_TEST, Y_TEST))
    assert figures(net, "validation_score") == pytest.approx(seen, rel=1e-6)
    held = Net(**{**SMALL, "epochs": 6}, scoring=scoring, early_stopping=True, patience=2).fit(X, Y)
    plain = Net(**{**SMALL, "epochs": 6}, early_stopping=True, patience=2).fit(X, Y)
    ours, theirs = figures(held, "validation_score"), figures(plain, "validation_score")
    assert (ours[:3] == pytest.approx(theirs[:3])) == (name == "function")  # the same samples, with their own labels


@pytest.mark.filterwarnings("error:X does not have valid feature names")
@pytest.mark.parametrize("case", ["labels", "named", "images", "several", "regressor", "few"])
def test_a_scorer_is_given_what_the_user_gave(case):
    seen = []

    def scoring(net, X, y):
        seen.append((X.shape[1:], np.asarray(y), net.predict(X).shape == y.shape))
        return 0.0

    options = {**SMALL, "epochs": 2, "scoring": scoring, "early_stopping": True}
    names = np.array([f"digit {n}" for n in range(10)])
    if case == "labels":
        Net(**options).fit(X, names[Y])
    elif case == "named":
        Net(**options).fit(pd.DataFrame(X, columns=[f"pixel {n}" for n in range(64)]), names[Y])
    elif case == "images":
        Net(**{**options, "layers": "lenet5", "epochs": 1}, image_shape=(1, 16, 16)).fit(np.tile(X[:200], 4), names[Y[:200]])
    elif case == "several":
        Net(**options).fit(X, np.stack([Y > 4, Y % 2], 1))
    elif case == "regressor":
        NetRegressor(**options).fit(X, 1e3 + 5.0 * Y)
    else:  # all in one batch: samples are merged and put in order
        Net(**{**options, "batch_size": 300, "validation_fraction": 0.2}).fit(X[:200], names[Y[:200]])
    shape, y, fits = seen[-1]
    assert fits and shape == ((256,) if case == "images" else (64,))
    if case == "regressor":
        assert np.isin(np.round(y, 3), 1e3 + 5.0 * np.arange(10)).all()
    elif case == "several":
        assert y.shape[1] == 2 and set(np.unique(y)) <= {0, 1}
    else:
        assert set(y) <= set(names)


@pytest.mark.parametrize("scoring", ["no such thing", 3, log_loss, ["accuracy"]], ids=["name", "number", "loss", "list"])
def test_what_is_no_scorer_is_refused(scoring):
    with pytest.raises(ValueError, match="scoring must be None, the name of a scikit-learn scorer or a function"):
        Net(**SMALL, scoring=scoring).fit(X, Y)
    with pytest.raises(ValueError, match=r"scoring must be None or a function scoring\(model, tokens\)"):
        LanguageModel(**LANGUAGE, scoring="accuracy").fit(WORDS)


def test_a_score_that_is_no_number_is_named():
    net = Net(**SMALL, scoring=lambda net, X, y: "good")
    with pytest.raises(TypeError, match="scoring must give a number, larger is better, and gave 'good'"):
        net.fit(X, Y, validation=(X_TEST, Y_TEST))
    assert not hasattr(net, "model_")


def test_the_best_epoch_is_known():
    net = Net(**{**SMALL, "epochs": 40}, learning_rate=0.05, early_stopping=True, patience=3).fit(X, Y)
    scores = figures(net, "validation_score")
    assert net.best_epoch_ == 1 + next(n for n, score in enumerate(scores) if score >= max(scores) - 1e-4)
    assert net.best_epoch_ == net.n_iter_ - 3 < 40
    plain = Net(**SMALL).fit(X, Y)
    assert plain.best_epoch_ is None
    seen = []
    watched = Net(**SMALL, callbacks=[lambda net, record: seen.append(net.best_epoch_)])
    watched.fit(X, Y, validation=(X_TEST, Y_TEST))
    assert watched.best_epoch_ == 1 + int(np.argmax(figures(watched, "validation_score"))) and len(seen) == 3
    assert pickle.loads(pickle.dumps(watched.set_params(callbacks=None))).best_epoch_ == watched.best_epoch_


@pytest.mark.parametrize("early", [True, False])
def test_after_partial_fit_no_epoch_is_the_best(early):
    """Its epoch goes on from the weights of the best one, and has no validation."""
    net = Net(**SMALL, early_stopping=early).fit(X, Y, validation=(X_TEST, Y_TEST))
    model = LanguageModel(**LANGUAGE, early_stopping=early).fit(WORDS, validation=WORDS[:99])
    for trained, data in ((net, (X, Y)), (model, (WORDS,))):
        assert trained.best_epoch_ is not None
        assert trained.partial_fit(*data).best_epoch_ is None and len(trained.history_) == 4
        assert kept_epoch(trained) is trained.history_[-1]
    assert net.fit(X, Y, validation=(X_TEST, Y_TEST)).best_epoch_ is not None


# --- plateaus ---------------------------------------------------------------------------------------------------------
class Figure(Hook):
    """Records figures that are given."""

    watches = False

    def __init__(self, values):
        self.values = values

    def epoch_end(self, run, record):
        return {"figure": self.values[run.epoch]}


@pytest.mark.parametrize(
    "values, options, rates",
    [
        ([1, 2, 2, 2, 3, 3, 3, 3], {"patience": 1}, [1, 1, 1, 1, 0.5, 0.5, 0.5, 0.25]),
        ([1, 2, 2, 2, 3, 3, 3, 3], {"patience": 0}, [1, 1, 1, 0.5, 0.25, 0.25, 0.125, 0.0625]),
        ([1, 1, 1, 1, 1, 1, 1, 1], {"patience": 0, "min_lr": 0.002}, [1, 1, 0.5, 0.25, 0.2, 0.2, 0.2, 0.2]),
        ([1, 1, 1, 1, 1, 1, 1, 1], {"patience": 0, "cooldown": 2}, [1, 1, 0.5, 0.5, 0.5, 0.25, 0.25, 0.25]),
        (
            [0, 0.05, 0.15, 0.2, 0.4, 0.45, 0.6, 0.9],
            {"patience": 0, "threshold": 0.1},
            [1, 1, 0.5, 0.5, 0.25, 0.25, 0.125, 0.125],
        ),
    ],
)
@pytest.mark.parametrize("schedule", [None, "linear"])
def test_the_rate_falls_where_nothing_improves(values, options, rates, schedule):
    hooks = [Figure(values), ReduceLROnPlateau(0.5, monitor="figure", **options)]
    net = Net(**{**SMALL, "epochs": 8}, learning_rate=0.01, learning_rate_schedule=schedule, callbacks=hooks)
    net.fit(X[:200], Y[:200])
    factors = [1 - epoch / 8 for epoch in range(8)] if schedule else [1] * 8
    assert figures(net, "learning_rate") == pytest.approx([0.01 * a * b for a, b in zip(rates, factors)])
    torch = pytest.importorskip("torch")
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], 0.01)
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizer, "max", 0.5, threshold_mode="abs", **{"threshold": 1e-4, **options}
    )
    found = []
    for value in values:
        found.append(optimizer.param_groups[0]["lr"] / 0.01)
        theirs.step(value)
    assert found == pytest.approx(rates)


def test_a_plateau_is_counted_anew_by_fit_and_on_by_partial_fit():
    hook = ReduceLROnPlateau(0.5, patience=2, monitor="figure")
    net = Net(**SMALL, callbacks=[Figure([1] * 9), hook]).fit(X, Y)
    assert net.optimizer_.learning_rate == 0.02
    net.partial_fit(X, Y)
    assert net.optimizer_.learning_rate == 0.02 / 2
    assert net.fit(X, Y).optimizer_.learning_rate == 0.02


@pytest.mark.parametrize(
    "options, message",
    [
        ({"factor": 1.0}, "factor"),
        ({"factor": True}, "factor"),
        ({"patience": -1}, "patience"),
        ({"patience": 1.5}, "patience"),
        ({"threshold": -1}, "threshold"),
        ({"cooldown": -1}, "cooldown"),
        ({"min_lr": -1}, "min_lr"),
    ],
    ids=str,
)
def test_what_is_no_plateau_is_refused(options, message):
    with pytest.raises(ValueError, match=f"ReduceLROnPlateau: {message} must be"):
        ReduceLROnPlateau(**options)


@pytest.mark.parametrize(
    "hook",
    [ReduceLROnPlateau(monitor="val_loss"), ModelCheckpoint("a", monitor="val_loss")],
    ids=lambda hook: type(hook).__name__,
)
def test_a_figure_that_is_not_recorded_is_named(hook):
    net = Net(**SMALL, callbacks=[hook])
    with pytest.raises(ValueError, match="no figure 'val_loss' in the record, which has epoch, loss, .*validation=..."):
        net.fit(X, Y)
    assert not hasattr(net, "model_")


# --- files ------------------------------------------------------------------------------------------------------------
def test_the_best_epoch_stands_in_a_file(tmp_path):
    seen = []
    hook = ModelCheckpoint(tmp_path / "best.safetensors", monitor="validation_loss")
    net = Net(**{**SMALL, "epochs": 30}, learning_rate=0.3, callbacks=[hook, lambda net, record: seen.append(weights(net))])
    net.fit(X, Y, validation=(X_TEST, Y_TEST))
    best = int(np.argmin(figures(net, "validation_loss")))
    loaded = Net.load(tmp_path / "best.safetensors")
    assert best < 29 and loaded.n_iter_ == best + 1 and loaded.callbacks is None
    for ours, theirs in zip(weights(loaded), seen[best], strict=True):
        np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(loaded.predict(X_TEST), loaded.predict(X_TEST))


def test_every_epoch_may_have_a_file(tmp_path):
    Net(**SMALL, callbacks=[ModelCheckpoint(tmp_path / "{epoch:02d}", save_best_only=False)]).fit(X, Y)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["01", "02", "03"]
    model = LanguageModel(**LANGUAGE, callbacks=[ModelCheckpoint(tmp_path / "words")]).fit(WORDS)
    assert LanguageModel.load(tmp_path / "words").n_iter_ == 1 + int(np.argmin(figures(model, "loss")))


def test_networks_that_are_still_becoming_sparse_are_not_the_best(tmp_path):
    net = Net(
        (48, 48),
        epochs=6,
        batch_size=32,
        learning_rate=0.02,
        sparsity=GroupLasso(8e-3),
        random_state=0,
        device="cpu",
        callbacks=[ModelCheckpoint(tmp_path / "best", monitor="weights_kept")],
    ).fit(X, Y)
    assert figures(net, "weights_kept")[0] > figures(net, "weights_kept")[-1]
    assert Net.load(tmp_path / "best").n_iter_ == 4  # the first of fine-tuning


FUNCTIONS = {
    "augment": lambda x, rng, dev: x,
    "learning_rate_schedule": lambda epoch: 1.0,
    "loss": lambda output, target: (output * output).mean(),
    "optimizer": lambda parameters, rate: SGD(parameters, rate),
    "scoring": lambda net, X, y: 0.0,
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_parameter_that_no_file_can_hold_is_refused_before_training(tmp_path, name):
    seen = []
    count = lambda net, record: seen.append(record["epoch"])  # noqa: E731  callbacks are functions
    saves = ModelCheckpoint(tmp_path / "best")
    net = Net(**SMALL, callbacks=[count, saves], **{name: FUNCTIONS[name]})
    with pytest.raises(
        TypeError, match=rf"^ModelCheckpoint: save: {name}=<function.* cannot be saved.*fit\(checkpoint='run/'\)"
    ):
        net.fit(X, Y)
    assert seen == [] and not hasattr(net, "model_") and list(tmp_path.iterdir()) == []
    net.set_params(callbacks=None).fit(X, Y, checkpoint=tmp_path / "run")  # the way out
    again = Net.resume(tmp_path / "run", **{name: FUNCTIONS[name]})
    for ours, theirs in zip(weights(again), weights(net), strict=True):
        np.testing.assert_array_equal(ours, theirs)
    again = Net(**SMALL, **{name: FUNCTIONS[name]}).fit(X, Y).set_params(callbacks=[count, saves])
    with pytest.raises(TypeError, match=f"^ModelCheckpoint: save: {name}="):
        again.partial_fit(X, Y)
    assert seen == [] and again.n_iter_ == 3


def test_layers_and_policies_that_no_file_can_hold_are_refused_before_training(tmp_path):
    class Own(ReLU):
        def __init__(self, slope):
            self.slope = slope

    class Windows(WindowDropout):
        pass

    seen = []
    hooks = [lambda net, record: seen.append(record), ModelCheckpoint(tmp_path / "best")]
    net = Net([Linear(64, 10, rng=0), Own(print)], epochs=2, callbacks=hooks)
    with pytest.raises(TypeError, match="^ModelCheckpoint: save: layer .* cannot be saved; save net.model_.state_dict"):
        net.fit(X, Y)
    with pytest.raises(TypeError, match="^ModelCheckpoint: save: dropout=.*train by fit"):
        Net(**SMALL, dropout=Windows(0.5), callbacks=hooks).fit(X, Y)
    assert seen == []
    Net(**SMALL, callbacks=hooks).fit(X, Y, dropout=Windows(0.5))  # which predictions do not need
    assert Net.load(tmp_path / "best").n_iter_ == len(seen) == 3


@pytest.mark.parametrize("path, error", [("{figure}", ValueError), ("{", ValueError), ("no/such/folder", FileNotFoundError)])
def test_a_path_that_cannot_be_is_named(tmp_path, path, error):
    with pytest.raises(error, match="cannot be filled|no folder"):
        Net(**SMALL, callbacks=[ModelCheckpoint(tmp_path / path)]).fit(X, Y)
    with pytest.raises(ValueError, match="save_best_only"):
        ModelCheckpoint("a", save_best_only="yes")


def test_a_folder_that_is_missing_is_named_before_training(tmp_path):
    seen, saves = [], ModelCheckpoint(tmp_path / "no" / "{epoch}")
    with pytest.raises(FileNotFoundError, match="no folder"):
        Net(**SMALL, callbacks=[lambda net, record: seen.append(record), saves]).fit(X, Y)
    assert seen == []
    make = lambda net, record: (tmp_path / str(record["epoch"])).mkdir()  # noqa: E731  callbacks are functions
    Net(**SMALL, callbacks=[make, ModelCheckpoint(tmp_path / "{epoch}" / "best", save_best_only=False)]).fit(X, Y)
    assert len(list(tmp_path.glob("*/best"))) == 3


@pytest.mark.parametrize(
    "scores, best, epochs", [((0.5, 0.9, math.nan, 0.3, 0.35), 2, 5), ((math.nan, 0.5, 0.4, 0.3, 0.2), 2, 5)]
)
def test_a_score_that_is_nan_is_no_improvement(scores, best, epochs):
    given = iter(scores)
    net = Net(**{**SMALL, "epochs": 9}, early_stopping=True, patience=3, scoring=lambda *_: next(given)).fit(X, Y)
    assert net.best_epoch_ == best and net.n_iter_ == epochs


def test_predictions_select_at_the_rate_of_the_epoch_whose_weights_are_kept(tmp_path):
    """dsg drops in predictions, too: with the weights of the best epoch at the rate of that epoch."""
    policy = DynamicSparseGraph(EarlyDropout(0.8, 0.5), share="sample", epsilon=0.9)
    options = {**SMALL, "epochs": 4, "layers": (64, 64), "dropout": policy}
    given = iter((0.5, 0.9, 0.3, 0.3))
    net = Net(**options, early_stopping=True, scoring=lambda *_: next(given)).fit(X, Y)
    assert net.best_epoch_ == 2 < net.n_iter_ == 4
    net.set_params(scoring=None).save(tmp_path / "net.safetensors")
    for other in (net, Net.load(tmp_path / "net.safetensors"), pickle.loads(pickle.dumps(net))):
        assert other._predictor().policy.rate == 0.8
        np.testing.assert_array_equal(other.predict_proba(X_TEST), net.predict_proba(X_TEST))
    assert net.partial_fit(X, Y)._predictor().policy.rate == 0.0


def test_scores_that_are_never_numbers_stop_with_the_last_weights():
    net = Net(**{**SMALL, "epochs": 9}, early_stopping=True, patience=2, scoring=lambda *_: math.nan)
    with pytest.warns(UserWarning, match="early_stopping: validation_score was NaN or -inf in all epochs"):
        net.fit(X, Y)
    assert (net.n_iter_, net.best_epoch_) == (2, None)
