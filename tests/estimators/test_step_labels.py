"""One label for each time step: sequences of any length, whose padding counts nowhere."""

import numpy as np
import pytest
from sklearn.base import clone

from numbanet import (
    GRU,
    LSTM,
    BernoulliDropout,
    Embedding,
    LastStep,
    LayerNorm,
    Linear,
    Net,
    ReLU,
    RowDropout,
    Tensor,
    TileDropout,
    ops,
)
from numbanet.losses import CrossEntropy
from numbanet.training.task import StepClassification

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")


def tagged(rng, n=160, steps=8, ahead=False):
    """(X, y, which steps there are): symbols 1 … 4, padded with 0; a step's class is whether it is like the one before it, with
    `ahead` the one after it; padding has the label 7."""
    lengths = rng.integers(2, steps + 1, n)
    there = np.arange(steps) < lengths[:, None]
    X = np.where(there, rng.integers(1, 5, (n, steps)), 0)
    other = np.roll(X, -1 if ahead else 1, 1)
    edge = lengths - 1 if ahead else np.zeros(n, int)
    y = (X == other).astype(int)
    y[np.arange(n), edge] = 0
    return X, np.where(there, y, 7), there


def layers(kind=GRU, both=False, classes=2, width=24):
    return [
        Embedding(5, 8, padding_idx=0, rng=0),
        kind(8, width, batch_first=True, bidirectional=both, rng=1),
        Linear(width * (1 + both), classes, rng=2),
    ]


def net(given, **options):
    return Net(
        given,
        **{
            "epochs": 60,
            "batch_size": 40,
            "optimizer": "adam",
            "learning_rate": 0.02,
            "random_state": 0,
            "device": "cpu",
            **options,
        },
    )


@pytest.mark.slow
@pytest.mark.parametrize("kind, both", [(GRU, False), (LSTM, False), (GRU, True), (LSTM, True)])
@pytest.mark.parametrize("dropout", ["none", BernoulliDropout(0.1), RowDropout(0.2), TileDropout(0.2, tile=4)], ids=str)
def test_a_net_labels_each_step(rng, tmp_path, dropout, kind, both):
    X, y, there = tagged(rng, ahead=both)
    found = net(layers(kind, both), dropout=dropout).fit(X, y)
    assert list(found.classes_) == [0, 1]
    answers, shares = found.predict(X), found.predict_proba(X)
    assert answers.shape == y.shape and shares.shape == (*y.shape, 2)
    np.testing.assert_allclose(shares.sum(-1), 1, rtol=1e-5)
    np.testing.assert_allclose(np.exp(found.predict_log_proba(X)), shares, rtol=1e-4, atol=1e-7)
    assert found.score(X, y) == np.mean((answers == y)[there]) > 0.9
    found.save(tmp_path / "net")
    loaded = Net.load(tmp_path / "net")
    np.testing.assert_array_equal(loaded.predict(X), answers)
    assert loaded.score(X, y) == found.score(X, y)


def test_what_stands_after_the_end_of_a_sequence_changes_nothing(rng):
    """Neither its labels, to the last bit, nor how much of it there is."""
    X, y, there = tagged(rng)
    first = net(layers(), epochs=3).fit(X, y)
    other = net(layers(), epochs=3).fit(X, np.where(there, y, rng.integers(0, 2, y.shape)))
    longer = net(layers(), epochs=3).fit(*(np.pad(a, ((0, 0), (0, 3)), constant_values=0) for a in (X, y)))
    for name, array in first.model_.state_dict().items():
        np.testing.assert_array_equal(array, other.model_.state_dict()[name])
        np.testing.assert_allclose(array, longer.model_.state_dict()[name], rtol=2e-3, atol=2e-4)
    for key in ("loss", "score"):
        assert first.history_[-1][key] == other.history_[-1][key]
        assert first.history_[-1][key] == pytest.approx(longer.history_[-1][key], rel=1e-3)


def test_loss_and_score_are_means_over_steps(rng):
    """PyTorch's cross-entropy, which leaves out what is padding."""
    X, y, there = tagged(rng, n=50)
    found = net(layers(), epochs=1, learning_rate=1e-12, batch_size=20).fit(X, y)
    output = torch.from_numpy(np.log(found.predict_proba(X)))
    target = torch.from_numpy(np.where(there, y, -100))
    expected = torch.nn.functional.cross_entropy(output.reshape(-1, 2), target.reshape(-1))
    assert found.history_[0]["loss"] == pytest.approx(expected.item(), rel=1e-4)
    assert found.history_[0]["score"] == pytest.approx(found.score(X, y), rel=1e-6)


def test_a_step_of_training_is_pytorchs(rng):
    X, y, there = tagged(rng, n=30)
    given = layers(GRU, True)
    found = net(given, epochs=1, optimizer="sgd", learning_rate=0.5, momentum=0.0, batch_size=30).fit(X, y)
    table, cells = torch.nn.Embedding(5, 8, padding_idx=0), torch.nn.GRU(8, 24, batch_first=True, bidirectional=True)
    theirs = torch.nn.ModuleList([table, cells, torch.nn.Linear(48, 2)])
    theirs.load_state_dict(
        {f"{i}.{name}": torch.from_numpy(a) for i, layer in enumerate(given) for name, a in layer.state_dict().items()}
    )
    packed = torch.nn.utils.rnn.pack_padded_sequence(table(torch.from_numpy(X)), there.sum(1), True, enforce_sorted=False)
    h, _ = torch.nn.utils.rnn.pad_packed_sequence(cells(packed)[0], True, total_length=8)
    targets = torch.from_numpy(np.where(there, y, -100)).reshape(-1)
    torch.nn.functional.cross_entropy(theirs[2](h).reshape(-1, 2), targets).backward()
    state = found.model_.state_dict()
    for name, parameter in theirs.named_parameters():
        np.testing.assert_allclose(state[name], (parameter - 0.5 * parameter.grad).detach(), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("weights", [None, "samples", "steps"])
def test_the_task_is_classification_of_all_steps(dev, rng, weights):
    task, output = StepClassification(), rng.standard_normal((4, 3, 5)).astype(np.float32)
    targets = rng.integers(5, size=(4, 3)).astype(np.int32)
    counts = {"samples": np.repeat(rng.random((4, 1)), 3, 1), "steps": rng.random((4, 3)) * (rng.random((4, 3)) < 0.7)}.get(
        weights
    )
    shares = np.full((4, 3), 1 / 12) if counts is None else counts / counts.sum()
    x = Tensor(output, dev, requires_grad=True)
    loss = task.loss(x, dev.upload(targets), None if counts is None else dev.upload(shares, np.float32))
    logits = torch.from_numpy(output).requires_grad_()
    labels = torch.from_numpy(targets).long().reshape(-1)
    each = torch.nn.functional.cross_entropy(logits.reshape(-1, 5), labels, reduction="none")
    expected = (each * torch.from_numpy(shares).reshape(-1)).sum()
    expected.backward()
    loss.backward()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-5)
    np.testing.assert_allclose(x.grad.numpy(), logits.grad, rtol=1e-4, atol=1e-6)
    answers = dev.download(task.answer(dev, x.data))
    np.testing.assert_array_equal(answers, output.argmax(-1))
    assert task.score(targets, answers, counts) == pytest.approx((shares * (answers == targets)).sum())
    constant = task.constant(targets, counts)
    assert constant.score == pytest.approx(max((shares * (targets == c)).sum() for c in range(5)))


def test_series_of_numbers_without_padding(rng):
    """All steps count; classes by name, and any layers that take each step by itself."""
    X = rng.standard_normal((90, 6, 3)).astype(np.float32)
    y = np.where(np.cumsum(X[:, :, 0], axis=1) > 0, "up", "down").astype(object)
    given = [LSTM(3, 24, batch_first=True, rng=0), LayerNorm(24), Linear(24, 16, rng=1), ReLU(), Linear(16, 2, rng=2)]
    for size in (30, 200):  # of which one takes all samples at once, equal ones together
        found = net(given, batch_size=size, epochs=40).fit(X, y)
        assert found.score(X, y) > 0.9 and set(found.predict(X).ravel()) == {"up", "down"}


def test_one_step_is_a_label(rng):
    X = rng.integers(1, 5, (60, 1))
    found = net(layers(), epochs=40).fit(X, X > 2)
    assert found.predict(X).shape == (60, 1) and found.score(X, X > 2) == 1


def test_weights_of_samples_and_classes(rng):
    """Samples without weight are not learned; a class of a larger weight is given more often."""
    X, y, there = tagged(rng)
    wrong = np.arange(len(X)) % 4 == 0
    found = net(layers()).fit(X, np.where(wrong[:, None] & there, 1 - y, y), sample_weight=np.where(wrong, 0.0, 2.0))
    assert found.score(X, y) > 0.9 and found.score(X, y, sample_weight=wrong) == pytest.approx(
        np.mean((found.predict(X) == y)[wrong][there[wrong]])
    )
    likely = [
        np.mean(net(layers(width=2), epochs=4, class_weight=weight).fit(X, y).predict_proba(X)[there, 1])
        for weight in ({0: 1, 1: 30}, "balanced", None, {0: 30, 1: 1})
    ]
    assert likely == sorted(likely, reverse=True) and likely[0] > 0.8 and 0.4 < likely[1] < 0.6 and likely[3] < 0.1


@pytest.mark.slow
def test_validation_early_stopping_and_going_on(rng):
    (X, y, _), (X_held, y_held, _) = tagged(rng), tagged(rng, n=60)
    found = net(layers(), epochs=30).fit(X, y, validation=(X_held, y_held))
    assert found.history_[-1]["validation_score"] == pytest.approx(found.score(X_held, y_held), abs=1e-6)
    stopped = net(layers(), epochs=200, early_stopping=True, patience=3).fit(X, y)
    assert stopped.n_iter_ < 200 and stopped.score(X, y) > 0.8
    parts = net(layers())
    for _ in range(40):
        parts.partial_fit(X, y, classes=[0, 1])
    assert parts.score(X, y) > 0.9
    warm = net(layers(), epochs=20, warm_start=True).fit(X, y)
    assert warm.fit(X, y).score(X, y) > 0.9
    assert clone(warm).fit(X, y).n_iter_ == 20


def test_losses_of_ones_own(rng):
    X, y, there = tagged(rng)
    smooth = net(layers(), loss=CrossEntropy(label_smoothing=0.1)).fit(X, y)
    assert smooth.score(X, y) > 0.9 and smooth.predict_proba(X)[there].max() < 0.999

    def own(output, target):
        assert output.ndim == 2 and target.shape == (output.shape[0],)
        steps = output.shape[0]
        return -output.log_softmax()[np.arange(steps), target]

    mine, theirs = (net(layers(), epochs=2, loss=loss).fit(X, y) for loss in (own, "cross_entropy"))
    np.testing.assert_allclose(mine.predict_proba(X), theirs.predict_proba(X), rtol=1e-3, atol=1e-5)


def test_nothing_learned_is_told(rng):
    X, y, _ = tagged(rng)
    with pytest.warns(UserWarning, match="no better than always predicting the most frequent class"):
        net(layers(), epochs=1, learning_rate=1e-9).fit(X, y)


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda X, y: (X, y[:, :5]), r"y has shape \(160, 5\), but the layers give an output for each of the 8 time steps"),
        (lambda X, y: (X, y[:, 1]), r"the last one must give \d outputs, not \(8, 2\) per sample"),
        (lambda X, y: (X, np.zeros_like(y)), "only one class is present"),
        (lambda X, y: (X, y + 0.5), "Unknown label type"),
    ],
)
def test_labels_that_do_not_fit_are_refused(rng, change, message):
    X, y, _ = tagged(rng)
    with pytest.raises(ValueError, match=message):
        net(layers()).fit(*change(X, y))


def test_later_labels_are_those_of_steps(rng):
    X, y, there = tagged(rng)
    found = net(layers(), epochs=1).fit(X, y)
    with pytest.raises(ValueError, match=r"y has shape \(160,\), but the layers give an output for each"):
        found.partial_fit(X, y[:, 1])
    with pytest.raises(ValueError, match=r"labels that are not among the classes \[0, 1\]: \[3\]"):
        found.partial_fit(X, np.where(there, 3, 7))
    with pytest.raises(ValueError, match="must give 3 outputs for each time step, not"):
        net(layers()).fit(X, np.where(there, X % 3, 7))
    assert net([*layers()[:2], LastStep(), Linear(24, 2, rng=0)], epochs=1).fit(X, y[:, 1]).predict(X).shape == (160,)


def test_where_labels_are_of_steps_shapes_say(rng):
    """(n, T) of 0 and 1 are several labels a sample, where the layers give outputs for samples."""
    X, y, _ = tagged(rng)
    several = net([*layers()[:2], LastStep(), Linear(24, 8, rng=0)], epochs=1).fit(X, y == 1)
    assert several.predict_proba(X).shape == (160, 8) and not several._by_step


def test_argmax_of_steps_is_that_of_rows(dev, rng):
    x = rng.standard_normal((3, 4, 5)).astype(np.float32)
    np.testing.assert_array_equal(ops.argmax(Tensor(x, dev), axis=2).numpy(), x.argmax(2))
