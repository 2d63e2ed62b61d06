"""On the CPU, too, a fit that replays recorded steps gives the weights, losses and scores of one that computes each of them."""

import concurrent.futures

import numpy as np
import pytest
from threadpoolctl import threadpool_limits

from numbanet import GELU, BatchNorm1d, Hook, LanguageModel, Linear, Net, NetRegressor, Optimizer, ReLU, RowDropout, profile
from numbanet.dropout import Dropout, DynamicSparseGraph, TileDropout
from numbanet.plans import IndexPlan
from numbanet.training.recorder import Recorder
from numbanet.training.stepper import Stepper
from numbanet_kernels.families.gemm_rows import cpu as gemm_rows
from numbanet_kernels.host import thresholds
from numbanet_kernels.runtime import replay, tape


@pytest.fixture
def replays(monkeypatch):
    """How often each tape of a step was replayed, alone or with others."""
    counts = {}

    def run(stretches, threads, together, tapes, *asides, original=replay.run):
        original(stretches, threads, together, tapes, *asides)
        for of in tapes:
            if set(of.names.values()) != {"_take_rows"}:  # which fetches a batch
                counts[of] = counts.get(of, 0) + 1

    monkeypatch.setattr(replay, "run", run)
    return counts


def fit(net=Net, layers=(9, 7), weights=False, **options):
    """Of 41 samples, 13 at a time: in an epoch three equal steps and a shorter one."""
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((41, 6)), np.arange(41) % 3
    return net(layers, random_state=0, **{"batch_size": 13, "epochs": 5, "dropout": "none", **options}).fit(
        x, y, sample_weight=1 + y if weights else None
    )


def alone(monkeypatch, **options):
    """The same fit, op by op."""
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "possible", property(lambda self: False, lambda self, value: None), raising=False)
        return fit(**options)


TIMES = {"seconds": 0, "tokens_per_second": 0}  # of this run


def equal(ours, theirs):
    state, other = ours.model_.state_dict(), theirs.model_.state_dict()
    assert state.keys() == other.keys()
    for name, value in state.items():
        assert value.tobytes() == other[name].tobytes(), name
    for record, expected in zip(ours.history_, theirs.history_, strict=True):
        assert {**record, **TIMES} == {**expected, **TIMES}


OPTIONS = {
    "adam": {"optimizer": "adam"},
    "adamw": {"optimizer": "adamw", "weight_decay": 0.1},
    "sgd": {"optimizer": "sgd"},
    "nesterov": {"optimizer": "sgd", "momentum": 0.9, "nesterov": True, "weight_decay": 0.01},
    "one output": {"net": NetRegressor},
    "tanh": {"activation": "tanh"},
    "gelu": {"activation": "gelu"},
    "sigmoid": {"activation": "sigmoid"},
    "weights": {"weights": True},
    "one sample": {"layers": (1,)},
    "huber": {"net": NetRegressor, "loss": "huber"},
    "clipped": {"clip_norm": 0.05, "optimizer": "sgd", "momentum": 0.9},
    "clipped in some steps": {"clip_norm": 0.4, "optimizer": "adam"},
}


@pytest.mark.filterwarnings("ignore:fit. the network is no better")
@pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)
def test_replayed_steps_train_the_same(monkeypatch, replays, options):
    ours = fit(**options)
    assert list(replays.values()) == [14, 4]  # of 15 and 5 steps: the first is done op by op
    assert all(("_sgd" in (names := of.names.values()) or "_adam" in names) for of in replays), "with the update"
    count = len(replays)
    equal(ours, alone(monkeypatch, **options))
    assert len(replays) == count


PLANNED = {
    "rdp": {"dropout": RowDropout(0.5, dp_max=2)},
    "adam": {"dropout": RowDropout(0.5, dp_max=2), "optimizer": "adam"},
    "bernoulli": {"dropout": "bernoulli", "dropout_rate": 0.4, "optimizer": "adam"},
    "tdp": {"dropout": TileDropout(0.5, tile=4, dp_max=2)},
    "tdp, adam": {"dropout": TileDropout(0.5, tile=4, dp_max=2), "optimizer": "adam"},
    "tdp of one tile, which is kept or not": {"dropout": TileDropout(0.5, tile=32, dp_max=2)},
    "batchwise": {"dropout": "batchwise", "dropout_rate": 0.5},
    "window": {"dropout": "window", "dropout_rate": 0.5},
    "large windows, which are not copied": {"dropout": "window", "dropout_rate": 0.5, "layers": (800, 800)},
    "clipped, rdp": {"dropout": RowDropout(0.5, dp_max=2), "clip_norm": 0.05},
    "clipped, tdp": {"dropout": TileDropout(0.5, tile=4, dp_max=2), "clip_norm": 0.05},
    "clipped, window": {"dropout": "window", "dropout_rate": 0.5, "clip_norm": 0.05, "optimizer": "adam"},
    "rdp by the epoch": {"dropout": RowDropout((0.0, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4, 0.4).__getitem__, dp_max=2)},
}


@pytest.mark.filterwarnings("ignore:fit. the network is no better")
@pytest.mark.parametrize("options", PLANNED.values(), ids=PLANNED)
def test_one_tape_serves_all_plans_of_a_kind(monkeypatch, replays, options):
    drawn = set()

    def draw(self, *given, original=Stepper.draw):
        plans = original(self, *given)
        drawn.update(plans.assigned.items())
        return plans

    monkeypatch.setattr(Stepper, "draw", draw)
    options = {"layers": (8, 6), "epochs": 8, **options}
    ours = fit(**options)
    assert 0 < len(replays) <= 2 * len({(site, plan.kind) for site, plan in drawn}) ** 2 and sum(replays.values()) > 10
    assert len(drawn) > len({(site, plan.kind) for site, plan in drawn})
    equal(ours, alone(monkeypatch, **options))


@pytest.mark.filterwarnings("ignore:fit. the network is no better")
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("clip_norm", [None, 0.05])
def test_updates_that_wait_are_recorded(monkeypatch, replays, size, clip_norm):
    """Of tiles that no step reads soon; what a recorded step reads is not packed by the update before."""
    options = {"dropout": TileDropout(0.5, tile=4, dp_max=2), "optimizer": "sgd", "momentum": 0.9, "clip_norm": clip_norm}
    options |= {"layers": (70, 40), "epochs": 8, "n_jobs": size}
    with thresholds.using(thresholds.Thresholds(1, 1, 1)), threadpool_limits(4, user_api="blas"):
        ours = fit(**options)
        assert sum(replays.values()) > 5
        equal(ours, alone(monkeypatch, **options))


@pytest.mark.filterwarnings("ignore:fit. the network is no better")
@pytest.mark.parametrize("size", [1, 2, 4])
def test_views_of_large_weights_are_those_of_the_present_plan(monkeypatch, replays, size):
    monkeypatch.setattr(gemm_rows, "LISTED", 0)
    options = {**PLANNED["rdp"], "layers": (70, 40), "epochs": 8, "n_jobs": size}
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(4, user_api="blas"):
        ours = fit(**options)
        assert sum(replays.values()) > 10
        equal(ours, alone(monkeypatch, **options))


@pytest.mark.filterwarnings("ignore:fit. the network is no better")
@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", ["adam", "nesterov", "clipped", "rdp", "tdp", "clipped, tdp"])
def test_threads_share_recorded_steps(monkeypatch, replays, name, size):
    options = {**OPTIONS, **PLANNED}[name]
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(4, user_api="blas"):
        ours = fit(**options, layers=(70, 40), n_jobs=size)
        assert all(recorded.threads == size for recorded in replays) and sum(replays.values()) > 5
        equal(ours, alone(monkeypatch, **options, layers=(70, 40), n_jobs=size))


@pytest.mark.filterwarnings("ignore:fit. the network is no better")
def test_two_fits_at_the_same_time_do_not_wait_for_each_other(replays):
    """Two threads, one crew: whoever finds it taken does all parts itself."""
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(2, user_api="blas"):
        expected = fit(layers=(70, 40), epochs=30)
        with concurrent.futures.ThreadPoolExecutor(2) as both:
            for found in [both.submit(fit, layers=(70, 40), epochs=30) for _ in range(2)]:
                equal(found.result(timeout=60), expected)


def test_a_step_that_cannot_be_recorded_leaves_the_weights_to_the_next(monkeypatch):
    """An error while recording: one warning, and training goes on op by op."""

    def broken(self, *given, original=tape.Tape.__init__):
        original(self, *given)
        raise OSError("no tape today")

    with monkeypatch.context() as patch:
        patch.setattr(tape.Tape, "__init__", broken)
        with pytest.warns(UserWarning, match="not replayed: OSError: no tape today") as found:
            ours = fit()
    assert sum("no tape today" in str(warning.message) for warning in found) == 1
    equal(ours, alone(monkeypatch))


def test_what_a_callback_changes_is_trained(monkeypatch, replays):
    """Weights, layers and rates that are exchanged between epochs are the ones that the next steps use."""

    def exchange(net, record):
        if record["epoch"] == 2:
            for p in net.model_.parameters():
                p.data = p.device.copy(p.data)
        if record["epoch"] == 3:
            net.model_.layers[1] = GELU()
        if record["epoch"] == 4:
            net.model_.layers[0].weight.requires_grad = False

    ours = fit(callbacks=[exchange], epochs=7)
    assert sum(replays.values()) > 12
    equal(ours, alone(monkeypatch, callbacks=[exchange], epochs=7))


class Slowing(Optimizer):
    """w -= lr g / t, t the step: a number of its own."""

    recordable, states = True, 0

    def numbers(self, count):
        return (self.learning_rate / (count + 1),)

    def update(self, dev, due, numbers):
        for _, (w,), g, _ in due:
            dev.sub(w, dev.mul(g, dev.broadcast_to(dev.reshape(numbers, (1, 1)), w.shape)), out=w)


@pytest.mark.filterwarnings("ignore:fit. the network answers no better")
def test_numbers_that_an_optimiser_declares_are_those_of_each_step(monkeypatch, replays):
    ours = fit(optimizer=Slowing)
    assert list(replays.values()) == [14, 4]
    whole = max(len(recorded.names) for recorded in replays)
    equal(ours, alone(monkeypatch, optimizer=Slowing))
    replays.clear()
    equal(fit(optimizer=type("Still", (Slowing,), {})), ours)  # which does not say of itself that it may be recorded
    assert replays and max(len(recorded.names) for recorded in replays) < whole


class Steps(Hook):
    """Looks at each step, and changes weights in place."""

    def before_step(self, run, batch):
        return batch._replace(inputs=run.dev.affine(batch.inputs, mul=1.5))

    def after_update(self, run):
        for p in run.model.parameters():
            run.dev.affine(p.data, mul=0.99, out=p.data)


def test_hooks_of_steps_are_called(monkeypatch, replays):
    ours = fit(callbacks=[Steps()])
    assert sum(replays.values()) > 12
    equal(ours, alone(monkeypatch, callbacks=[Steps()]))


def test_fits_go_on_from_where_they_were(monkeypatch, replays):
    x, y = np.random.default_rng(0).standard_normal((40, 6)), np.arange(40) % 3

    def both():
        net = fit()
        return net.partial_fit(x, y).partial_fit(x, y)

    ours = both()
    with monkeypatch.context() as patch:
        patch.setattr(Recorder, "possible", property(lambda self: False, lambda self, value: None), raising=False)
        equal(ours, both())


@pytest.mark.filterwarnings("ignore:fit. the network answers no better")
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("layers", [(70, 40), (700, 600)], ids=["small", "large"])
def test_neurons_that_are_chosen_in_a_step_are_put_where_recorded_loops_read_them(monkeypatch, replays, layers, size):
    options = {"dropout": DynamicSparseGraph(lambda epoch: 0.5 if epoch < 3 else 0.3), "layers": layers, "n_jobs": size}
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(4, user_api="blas"):
        ours = fit(**options, epochs=7)
        assert len(replays) == 4 and not any(recorded.asides for recorded in replays)
        assert all(recorded.threads == size and "_top_k" in recorded.names.values() for recorded in replays)
        equal(ours, alone(monkeypatch, **options, epochs=7))


def normalised():
    return [Linear(6, 70, rng=0), ReLU(), BatchNorm1d(70), Linear(70, 40, rng=1), ReLU(), Linear(40, 3, rng=2)]


SAMPLED = {
    "tiles": {"share": "tile", "group": 5},
    "large tiles": {"share": "tile", "group": 32},
    "samples": {"share": "sample"},
    "samples of exact outputs": {"share": "sample", "epsilon": 0.1},
}


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fit. the network", "ignore:dsg")
@pytest.mark.parametrize("size", [1, 2, 4])
@pytest.mark.parametrize("double", [True, False])
@pytest.mark.parametrize("sets", SAMPLED.values(), ids=SAMPLED)
def test_each_sample_has_its_neurons_in_recorded_steps(monkeypatch, replays, sets, double, size):
    policy = DynamicSparseGraph(lambda epoch: 0.5 if epoch < 3 else 0.3, double=double, **sets)
    with thresholds.using(thresholds.Thresholds(1, 1)), threadpool_limits(4, user_api="blas"):
        ours = fit(dropout=policy, layers=normalised(), n_jobs=size, epochs=7, batch_size=12)
        assert len(replays) == 4 and not any(recorded.asides for recorded in replays)
        assert all(recorded.threads == size for recorded in replays)
        equal(ours, alone(monkeypatch, dropout=policy, layers=normalised(), n_jobs=size, epochs=7, batch_size=12))


@pytest.mark.filterwarnings("ignore:dsg")
@pytest.mark.parametrize("share", ["batch", "sample"])
def test_the_chosen_plans_of_a_replayed_step_are_those_of_the_step(monkeypatch, share):
    """A hook that changes weights sees each step computed, and then reads its plans."""
    seen = []

    class Watch(Hook):
        def after_update(self, run):
            seen.append([plan.mask().copy() for plan in current[0].assigned.values()])

    def begin(self, plans, original=Stepper._begin_choice):
        current[:] = [plans]
        original(self, plans)

    current = []
    monkeypatch.setattr(Stepper, "_begin_choice", begin)
    options = {"dropout": DynamicSparseGraph(0.5, share=share), "layers": (70, 40), "callbacks": [Watch()]}
    ours, recorded = fit(**options), seen.copy()
    seen.clear()
    equal(ours, alone(monkeypatch, **options))
    assert len(recorded) == len(seen) == 20 and len({masks[1].tobytes() for masks in seen}) > 5
    for masks, expected in zip(recorded, seen, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(masks, expected, strict=True))


class Restless(Hook):
    """Exchanges the policy in an epoch, in which the plans are of the same kinds before and after."""

    watches = False

    def epoch_start(self, run, epoch):
        if epoch == 3:
            run.stepper.policy = DynamicSparseGraph(0.5, samples=3, seed=1)


def test_what_a_policy_projects_anew_is_read(monkeypatch, replays):
    """Rows are projected again within an epoch and at its start, and steps that wait are computed before."""
    options = {
        "dropout": DynamicSparseGraph(0.5, epsilon=0.9, refresh=2),
        "layers": (300, 200),
        "epochs": 7,
        "optimizer": "adam",
        "learning_rate": 0.1,
        "callbacks": [Restless()],
    }
    ours = fit(**options, n_jobs=1)
    assert len(replays) == 4 and sum(replays.values()) == 7 * 4 - 4
    equal(ours, alone(monkeypatch, **options, n_jobs=1))


class Moody(Dropout):
    """Chooses more or fewer neurons than it says."""

    name, data_dependent, alike = "moody", True, True

    def plan(self, site, rng):
        return None

    def choose(self, site, x, w, rng):
        return IndexPlan(w.shape[0], np.arange(rng.integers(1, w.shape[0])))


def test_a_choice_of_another_kind_than_was_recorded_is_an_error():
    with pytest.raises(RuntimeError, match=r"was chosen for 0\.output where plans of the kind .* were recorded"):
        fit(dropout=Moody(0.5), layers=(70, 40))


@pytest.mark.parametrize(
    "options, reason",
    [
        ({"dropout": "window", "dropout_rate": 0.5, "layers": (1000, 1000)}, None),
        ({"dropout": DynamicSparseGraph(0.5, share="sample")}, None),
        ({"dropout": DynamicSparseGraph(0.5, share="sample", threshold="shared")}, "does not say that"),
        ({"dropout": "dsg", "dropout_rate": 0.5}, None),
        ({"optimizer": type("Still", (Slowing,), {})}, "updates by Still, which does not say"),
        ({"clip_norm": 0.1}, None),
        ({}, None),
    ],
    ids=str,
)
def test_profiling_says_why_steps_are_not_recorded(monkeypatch, capsys, options, reason):
    monkeypatch.setattr(profile, "ENABLED", True)
    fit(**options, epochs=2)
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("not recorded: ")]
    assert len(said) == (reason is not None) and (reason is None or reason in said[0])


@pytest.mark.parametrize("mode", ["columns", "threshold"])
def test_profiling_waits_for_a_step_that_may_be_recorded(monkeypatch, capsys, mode):
    """The first step with sparse gates is compared with the dense gradient, which is not recorded; the next one tells."""
    monkeypatch.setattr(profile, "ENABLED", True)
    options = {"gate_sparsity": 0.5, "gate_mode": mode, "gate_schedule": 1.0, "epochs": 1, "batch_size": 4, "steps": 8}
    LanguageModel((8,), random_state=0, **options).fit(list("abcdefgh" * 20))
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("not recorded: ")]
    assert said == ([] if mode == "columns" else ["not recorded: a plan has no kind"])


def test_profiling_changes_nothing(monkeypatch):
    """The step whose recording is tried must not see what the trial allocates, such as states of recurrent layers."""
    words = list("abcdefgh" * 20)

    def train():
        return LanguageModel((8,), epochs=2, random_state=0, batch_size=4, steps=8).fit(words)

    ours = train()
    monkeypatch.setattr(profile, "ENABLED", True)
    equal(train(), ours)
