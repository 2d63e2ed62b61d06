"""What travels between ranks, counted; what ranks refuse before the first step; and what they do if one fails."""

import numpy as np
import pytest

from numbanet import Hook, LanguageModel, Net, Tensor, ops
from numbanet.device import device
from numbanet.dropout import BatchwiseDropout
from numbanet.parallel import Exchange, NotFinite, RankFailure, run_ranks
from numbanet.plans import IndexPlan
from numbanet.training.sgd import SGD
from numbanet.training.task import LanguageModelling

RNG = np.random.default_rng(3)
X = RNG.standard_normal((200, 12)).astype(np.float32)
Y = X[:, :3].argmax(1)
SETTINGS = {"random_state": 0, "device": "cpu", "batch_size": 40, "epochs": 2}


class Plans(Hook):
    """Counts the elements of gradients that the plans of each step keep."""

    def __init__(self, widths):
        self.widths, self.kept, self.steps = widths, 0, 0

    def before_step(self, run, batch):
        a, b = (1.0, 1.0) if self.drawn is None else [plan.count for _, plan in sorted(self.drawn.items())]
        n, _, _, outputs = self.widths
        self.kept += n * a + a + a * b + b + b * outputs + outputs
        return batch

    def epoch_start(self, run, epoch):
        self.kept, original, hook = 0, type(run.stepper)._begin_choice, self

        def begin(plans):
            hook.drawn = plans.assigned
            original(run.stepper, plans)

        run.stepper._begin_choice = begin


def test_bytes_are_those_of_kept_gradients():
    """In each epoch, of a network whose hidden layers drop neurons; biases of dropped neurons do not travel either."""
    widths = 12, 64, 48, 3

    def fit(ranks):
        counted = Plans(widths)
        net = Net((64, 48), dropout="rdp", dropout_rate=0.6, callbacks=[counted], parallel=ranks, **SETTINGS).fit(X, Y)
        return net, counted

    for net, counted in run_ranks(2, fit):
        record = net.history_[-1]
        assert record["exchanged_bytes"] == 4 * counted.kept
        dense = 5 * sum(n * m + m for n, m in zip(widths, widths[1:]))
        assert record["exchanged_share"] == pytest.approx(counted.kept / dense)
        assert 0 < record["exchange_seconds"] <= record["seconds"]


def test_large_kept_gradients_travel_during_the_backward_pass(monkeypatch):
    """Before the gradient of the first layer is known, that of the second is on its way; the result is the same."""
    monkeypatch.setattr(Exchange, "SMALL", 64)
    events = {}

    class Noted(Exchange):
        def _start(self, array):
            events.setdefault(self.ranks.rank, []).append(array.shape)
            super()._start(array)

        def _sum(self, arrays, tables, loss, dense):
            events[self.ranks.rank].append(len(self.started))
            super()._sum(arrays, tables, loss, dense)

    monkeypatch.setattr("numbanet.estimators.joint.Exchange", Noted)
    nets = run_ranks(2, lambda ranks: Net((48, 40), dropout="batchwise", parallel=ranks, **SETTINGS).fit(X, Y))
    steps = 2 * 5
    assert events[0] == events[1] == [(20, 24), (24, 12), 2] * steps
    alone = Net((48, 40), dropout="batchwise", **SETTINGS).fit(X, Y)
    for ours, theirs in zip(nets[0].model_.parameters(), alone.model_.parameters()):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-5)


class Rows(Hook):
    """Lists the rows of each step."""

    def __init__(self):
        self.seen = []

    def before_step(self, run, batch):
        self.seen.append(np.array(batch.rows))
        return batch


def test_ranks_that_change_their_samples_at_random_still_share_all_samples():
    """Also if the last batch gives them unequal shares, and each draws other numbers."""

    def changed(x, rng, dev):
        rng.random(len(x))
        return x

    def fit(ranks):
        rows = Rows()
        settings = {**SETTINGS, "epochs": 3, "batch_size": 16}
        Net((8,), augment=changed, callbacks=[rows], parallel=ranks, **settings).fit(X[:35], Y[:35])
        return rows.seen

    one, other = run_ranks(2, fit)
    assert len(one) == len(other) == 9 and len(one[2]) != len(other[2])
    for first in range(0, 9, 3):
        epoch = np.concatenate([*one[first : first + 3], *other[first : first + 3]])
        np.testing.assert_array_equal(np.sort(epoch), np.arange(35))


def test_everything_travels_without_dropout():
    net, _ = run_ranks(2, lambda ranks: Net((8,), parallel=ranks, **SETTINGS).fit(X, Y))
    assert net.history_[-1]["exchanged_share"] == 1 and net.history_[-1]["exchanged_bytes"] == 4 * 5 * (13 * 8 + 9 * 3)


def test_gradients_are_summed(dev):
    """On each device, large arrays by themselves and small ones in a bucket."""
    if not dev.asides() and dev.name != "emulated":
        pytest.skip("needs no card")
    shapes, small = [(3,), (40, 5), (7, 2)], 20

    def work(ranks):
        parameters = [Tensor(np.zeros(shape), dev, requires_grad=True) for shape in shapes]
        (sum((p * float(ranks.rank + i)).sum() for i, p in enumerate(parameters))).backward()
        exchange = Exchange(ranks, dev)
        exchange.SMALL = small
        SGD(parameters, 1.0)
        exchange._start(parameters[1].gradient.values)  # as `complete` does with packed gradients
        assert bool(exchange.started) == (dev.name == "cpu")  # elsewhere a copy is summed, later
        exchange(parameters, dev.upload(np.float32([1.0])))
        return [p.grad.numpy() for p in parameters], exchange

    for gradients, exchange in run_ranks(2 if dev.name == "cpu" else 1, work):
        of_all = 1 if dev.name == "cpu" else 0
        for i, (gradient, shape) in enumerate(zip(gradients, shapes)):
            np.testing.assert_array_equal(gradient, np.full(shape, (2 * i + 1) if of_all else i))
        assert exchange.sent == exchange.dense == 4 * sum(map(np.prod, shapes)) and exchange.step == 1


@pytest.mark.parametrize("columns", [None, [1, 4]], ids=["all columns", "kept columns"])
def test_rows_of_a_table_travel_with_their_numbers(dev, columns):
    """Only the rows that samples of a rank have looked up, which are other ones on each rank."""
    if not dev.asides() and dev.name != "emulated":
        pytest.skip("needs no card")
    rows, width = 30, 5
    symbols = [[3, 7, 3, 29], [7, 0, 7, *range(10, 20)], []] if dev.name == "cpu" else [[3, 7, 3, 29]]
    kept = list(range(width)) if columns is None else columns

    def work(ranks):
        table = Tensor(np.zeros((rows, width)), dev, requires_grad=True)
        cols = None if columns is None else IndexPlan(width, columns)
        y = ops.embedding(table, ids=np.array(symbols[ranks.rank], np.int64), cols=cols)
        (y * float(1 + ranks.rank)).sum().backward()
        exchange = Exchange(ranks, dev)
        exchange([table])
        return table.grad.numpy(), exchange

    expected = np.zeros((rows, width), np.float32)
    for rank, own in enumerate(symbols):
        for symbol in own:
            expected[symbol, kept] += 1 + rank
    for (gradient, exchange), own in zip(run_ranks(len(symbols), work), symbols, strict=True):
        np.testing.assert_array_equal(gradient, expected)
        assert exchange.sent == len(set(own)) * 4 * (1 + len(kept)) and exchange.dense == 4 * rows * width


def test_of_many_rows_the_whole_table_travels():
    """Ranks have more rows together than the table; the place for the sums is made once."""
    rows, steps = 6, [[[0, 1, 2, 3], [2, 3, 4, 5]], [[5], [5]], [[0, 1, 2, 3, 4], [4, 0, 1, 3, 2]]]

    def work(ranks):
        table, found = Tensor(np.zeros((rows, 3)), requires_grad=True), []
        exchange = Exchange(ranks, device("cpu"))
        for symbols in steps:
            table.zero_grad()
            ops.embedding(table, ids=np.array(symbols[ranks.rank])).sum().backward()
            exchange([table])
            found.append(table.grad.numpy().copy())
        return found, exchange

    for found, exchange in run_ranks(2, work):
        for gradient, symbols in zip(found, steps, strict=True):
            np.testing.assert_array_equal(gradient[:, 0], np.bincount(np.concatenate(symbols), minlength=rows))
        assert exchange.sent == 2 * 4 * rows * 3 + 4 * (1 + 3) and len(exchange.joint) == 1


@pytest.mark.parametrize("dropout", ["none", "batchwise"])
def test_rows_of_tables_are_exchanged_in_recorded_steps_as_well(dropout):
    """Of a language model; the result is that of a single process."""
    words = [f"w{n}" for n in np.random.default_rng(5).integers(300, size=4 * 60 + 1)]
    settings = {"steps": 5, "batch_size": 4, "epochs": 3, "learning_rate": 0.5, "random_state": 0, "device": "cpu"}
    models = run_ranks(2, lambda ranks: LanguageModel((6,), dropout=dropout, parallel=ranks, **settings).fit(words))
    alone = LanguageModel((6,), dropout=dropout, **settings).fit(words)
    for ours, theirs in zip(models[0].model_.parameters(), alone.model_.parameters(), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-5)
    for ours, theirs in zip(models[0].model_.parameters(), models[1].model_.parameters(), strict=True):
        assert ours.numpy().tobytes() == theirs.numpy().tobytes()
    assert all(record["exchanged_share"] < 0.8 for record in models[0].history_)


def test_ranks_with_unequal_numbers_of_segments_cut_their_passes_alike(monkeypatch):
    """Into chunks of time steps: else one rank would start to sum the gradient of the last weight earlier than another."""
    monkeypatch.setattr(Exchange, "SMALL", 1)
    words = [f"w{n}" for n in np.random.default_rng(5).integers(40, size=5 * 30 + 1)]
    settings = {"steps": 6, "batch_size": 5, "epochs": 2, "learning_rate": 0.5, "random_state": 0, "device": "cpu"}
    alone = LanguageModel((6,), dropout="batchwise", **settings).fit(words)
    symbols = alone.model_.symbols
    monkeypatch.setattr(LanguageModelling, "MOST_LOGITS", 6 * 2 * symbols)  # two segments are not cut, and three are
    models = run_ranks(2, lambda ranks: LanguageModel((6,), dropout="batchwise", parallel=ranks, **settings).fit(words))
    for ours, theirs in zip(models[0].model_.parameters(), alone.model_.parameters(), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-5)


# --- refused before the first step ------------------------------------------------------------------------------------
def fitted(**more):
    return lambda ranks: Net((8,), **{**SETTINGS, "parallel": ranks, **more}).fit(X, Y)


def other_samples(ranks):
    return Net((8,), parallel=ranks, **SETTINGS).fit(X[ranks.rank :], Y[ranks.rank :])


def other_shape(ranks):
    return Net((8,), parallel=ranks, shard=True, **SETTINGS).fit(X[:, ranks.rank :], Y)


def other_parameters(ranks):
    return Net((8 + ranks.rank,), parallel=ranks, **SETTINGS).fit(X, Y)


def other_call(ranks):
    net = Net((8,), parallel=ranks, **SETTINGS)
    return net.fit(X, Y) if ranks.first else net.partial_fit(X, Y, classes=np.unique(Y))


def other_arguments(ranks):
    return Net((8,), parallel=ranks, **SETTINGS).fit(X, Y, sample_weight=np.ones(len(Y)) if ranks.first else None)


def few_segments(ranks):
    return LanguageModel((4,), batch_size=1, parallel=ranks, device="cpu").fit(list("abcab" * 20))


class OwnChoice(BatchwiseDropout):
    """A policy of a user, whose choice depends on the samples of a rank."""

    name, data_dependent = "own", True

    def choose(self, site, x, w, rng):
        return self.plan(site, rng)


def test_ranks_that_go_on_with_other_weights_take_those_of_the_first():
    def started(rank):
        net = Net((8,), **SETTINGS, warm_start=True).fit(X, Y)
        net.model_.layers[0].weight.data[0, 0] += rank
        return net

    with pytest.warns(UserWarning, match="other weights than rank 0"):
        nets = run_ranks(2, lambda ranks: started(ranks.rank).set_params(parallel=ranks).fit(X, Y))
    alone = started(0).fit(X, Y)
    for ours, others, theirs in zip(*(net.model_.parameters() for net in (*nets, alone)), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), atol=1e-5)
        np.testing.assert_array_equal(ours.numpy(), others.numpy())


@pytest.mark.parametrize(
    "fit, message",
    [
        (fitted(dropout=OwnChoice()), "dropout 'own' chooses from its own samples.*numbanet.parallel.joint_scores"),
        (fitted(objective="time", device="auto"), "leave objective=None"),
        (other_samples, "rank 1 has number of samples=199"),
        (other_shape, "rank 1 has shape"),
        (other_call, "rank 1 has call='partial_fit', and rank 0 has call='fit'"),
        (other_arguments, "rank 1 has arguments=.'X', 'y'., and rank 0 has arguments=.'X', 'sample_weight', 'y'"),
        (other_parameters, r"rank 1 has layers='\(9,\)', and rank 0 has layers='\(8,\)'"),
        (few_segments, "batch_size=1 is less than the number of ranks, 2"),
        (fitted(parallel="ssh"), "parallel must be None, 'mpi' or a Ranks, got 'ssh'"),
        (fitted(shard="first"), "shard must be True, False or a function"),
    ],
)
def test_what_cannot_be_trained_together_is_refused(fit, message, monkeypatch):
    from numbanet.training.stepper import Stepper

    monkeypatch.setattr(Stepper, "step", lambda *given, **named: pytest.fail("a step was made"))
    with pytest.raises(ValueError, match=message):
        run_ranks(2, fit)


def test_versions_are_compared(monkeypatch):
    import numbanet

    versions = iter(["0.1.0", "0.2.0"])
    monkeypatch.setattr("numbanet.estimators.joint.version", lambda: next(versions))
    with pytest.raises(ValueError, match=r"has numbanet='0.\d.0', and rank 0 has numbanet='0.\d.0'"):
        run_ranks(2, fitted())
    assert numbanet.__version__


# --- failures ---------------------------------------------------------------------------------------------------------
class Once(Hook):
    """On one rank, spoils one step of the epoch `epoch`."""

    def __init__(self, ranks, rank, epoch=0, raises=None):
        self.here, self.epoch, self.raises, self.step = ranks.rank == rank, epoch, raises, 0

    def before_step(self, run, batch):
        self.step += 1
        if self.here and run.epoch == self.epoch and self.step % 5 == 3:
            if self.raises:
                raise self.raises
            batch.inputs[0, 0] = np.nan
        return batch


def test_a_rank_that_raises_ends_the_fit_of_all():
    seen = {}

    def work(ranks):
        net = Net((8,), callbacks=[Once(ranks, 1, raises=OSError("no disk"))], parallel=ranks, **SETTINGS)
        try:
            net.fit(X, Y)
        except (OSError, RankFailure) as error:
            seen[ranks.rank] = f"{type(error).__name__}: {error}"
        assert not hasattr(net, "model_")

    run_ranks(3, work)
    assert seen == {1: "OSError: no disk", **dict.fromkeys((0, 2), "RankFailure: rank 1 of 3 failed: OSError: no disk")}


@pytest.mark.filterwarnings("ignore:the loss was not finite:UserWarning")
def test_a_rank_that_meets_nan_is_named():
    """At once in the first epoch; a later one ends with the weights of the epoch before, on all ranks."""

    def first(ranks):
        return Net((8,), callbacks=[Once(ranks, 1)], parallel=ranks, **SETTINGS).fit(X, Y)

    def later(ranks):
        return Net((8,), callbacks=[Once(ranks, 0, epoch=1)], parallel=ranks, **SETTINGS).fit(X, Y)

    with pytest.raises(FloatingPointError, match=r"first epoch of this fit, from step 3 \(rank 1\) on"):
        run_ranks(2, first)
    nets, alone = run_ranks(2, later), Net((8,), **{**SETTINGS, "epochs": 1}).fit(X, Y)
    for net in nets:
        assert net.n_iter_ == 1
        np.testing.assert_allclose(net.model_.layers[0].weight.numpy(), alone.model_.layers[0].weight.numpy(), atol=1e-6)
    assert issubclass(NotFinite, FloatingPointError)


def test_a_stop_on_one_rank_stops_all():
    def fit(ranks):
        return Net((8,), callbacks=[lambda net, record: ranks.rank == 1], parallel=ranks, **SETTINGS).fit(X, Y)

    assert [net.n_iter_ for net in run_ranks(2, fit)] == [1, 1]


def test_only_the_first_rank_speaks(capsys, tmp_path):
    from numbanet import ModelCheckpoint

    def fit(ranks):
        save = ModelCheckpoint(tmp_path / f"{ranks.rank}.safetensors")
        return Net((8,), verbose=1, callbacks=[save], parallel=ranks, **SETTINGS).fit(X, Y)

    run_ranks(2, fit)
    assert len([line for line in capsys.readouterr().out.splitlines() if line.startswith("epoch ")]) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["0.safetensors"]


def test_steps_are_recorded_and_queued(monkeypatch):
    """The exchange lies within recorded steps, which leave the interpreter to the exchange alone."""
    from numbanet.training.queue import Queue

    count = []
    put, several = Queue.put, Queue.several
    monkeypatch.setattr(Queue, "put", lambda self, *given: count.append(1) or put(self, *given))
    monkeypatch.setattr(Queue, "several", lambda self, steps, *given: count.extend(steps) or several(self, steps, *given))
    fit = fitted(epochs=4, batch_size=50, optimizer="adam")
    fit(None)
    alone = len(count)
    run_ranks(2, fit)
    assert alone > 5 and len(count) == 3 * alone and device("cpu").asides()
