"""A signal's handler may raise at any moment: what was begun is then done, or undone, and nothing stays behind."""

import signal
import time
import traceback
import warnings

import numpy as np
import pytest
import threadpoolctl

from numbanet import (
    GRU,
    LSTM,
    SGD,
    DynamicSparseGraph,
    Embedding,
    GroupLasso,
    Hook,
    LanguageModel,
    LastStep,
    Layer,
    Linear,
    MagnitudePruning,
    Net,
    NetRegressor,
    Rewire,
    Sequential,
    SparseLinear,
    Tensor,
    no_grad,
    ops,
)
from numbanet.layers.context import around
from numbanet_kernels.host import blas, threads, thresholds
from numbanet_kernels.runtime import precision
from numbanet_kernels.runtime.context import Scoped
from numbanet_kernels.runtime.emulation import emulated, emulating
from numbanet_kernels.runtime.interrupt import deferred
from tests.dropout.test_sensitive import images, network

pytestmark = [
    pytest.mark.alone,
    pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="needs signal.setitimer"),
    pytest.mark.filterwarnings("ignore:fit. the network is"),
]


class Alarm(Exception):
    """What the handler of a time-out raises."""


class Clock:
    """An alarm that comes so many seconds after a call has begun, if it has not ended by then."""

    def __init__(self):
        self.armed = False

    def handler(self, number, frame):
        if self.armed:
            self.armed = False
            raise Alarm

    def interrupts(self, call, seconds):
        """Whether the alarm was raised in a frame of the library: not before the call, and not after its end."""
        inside, self.armed = False, True
        try:
            signal.setitimer(signal.ITIMER_REAL, max(seconds, 1e-6))
            call()
            self.armed = False
        except Alarm as alarm:
            frames = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(alarm.__traceback__)]
            inside = any(name.startswith("numbanet") for name in frames)
        signal.setitimer(signal.ITIMER_REAL, 0)
        return inside


@pytest.fixture
def clock(interruptible):
    clock = Clock()
    before = signal.signal(signal.SIGALRM, clock.handler)
    with threadpoolctl.threadpool_limits(2, user_api="blas"), thresholds.using(thresholds.Thresholds(1 << 12, 1 << 18, 0)):
        threads.share(lambda part: None)  # starts the crew
        yield clock
    signal.signal(signal.SIGALRM, before)


def traces(clock):
    """What an interrupted call may have left behind in this process."""
    recorded = (Tensor([1.0], requires_grad=True) * 2.0).requires_grad
    return {
        "SIGINT": signal.getsignal(signal.SIGINT) is signal.default_int_handler,
        "SIGALRM": signal.getsignal(signal.SIGALRM) == clock.handler,
        "deferred": (*deferred.levels, *deferred.pending),
        "threads of BLAS": tuple(blas.threads()),
        "parts": threads.count(),
        "free": not threads._crew(2).free.locked(),
        "gradients": recorded,
        "emulating": emulating(),
        "imprecise": precision.imprecise(),
        "around": around.get(),
        "errors": tuple(np.geterr().items()),
        "warnings": tuple(map(id, warnings.filters)),
    }


def frozen(value):
    """A value that compares equal where all that it holds is equal, bit by bit."""
    if isinstance(value, dict):
        return tuple((key, frozen(part)) for key, part in value.items())
    if isinstance(value, (list, tuple)):
        return tuple(map(frozen, value))
    if isinstance(value, np.ndarray):
        return value.shape, value.dtype.str, value.tobytes()
    return repr(value) if isinstance(value, float) else value


def state(net):
    """All that a call to train may change."""
    if not hasattr(net, "model_"):
        return tuple(vars(net))
    return frozen(
        [
            list(vars(net)),
            net.model_.state_dict(),
            list(map(id, net.model_.layers)),
            net.optimizer_.snapshot(),
            net.history_,
            net._streams.state(),
            [p.gradient for p in net.model_.parameters()],
        ]
    )


# --- blocks -----------------------------------------------------------------------------------------------------------
class Residual(Layer):
    """y = x + b relu(a x), of layers that it holds."""

    def __init__(self, inputs, hidden):
        self.a, self.b = Linear(inputs, hidden, rng=0), Linear(hidden, inputs, rng=1)

    def __call__(self, x):
        return x + self.b(ops.relu(self.a(x)))


VALUE = Scoped("value", 0)
X_HAND, W_HAND = (Tensor(np.ones((64, 128), np.float32), requires_grad=True) for _ in range(2))
MODEL = Sequential([Residual(128, 8), Linear(128, 2, rng=2)])
OPTIMIZER = SGD([Tensor(np.ones((64, 128), np.float32), requires_grad=True)], learning_rate=0.1)


def entered(*blocks):
    """Enter and leave some blocks, often."""

    def call():
        for _ in range(20):
            for block in blocks:
                with block():
                    pass

    return call


def step():
    OPTIMIZER.parameters[0].gradient = None
    (OPTIMIZER.parameters[0] * X_HAND).sum().backward()
    OPTIMIZER.step()


BLOCKS = {
    "deferred": entered(lambda: deferred),
    "sessions": entered(threads.session, lambda: threads.session(1)),
    "scoped": entered(no_grad, emulated, precision.tf32, lambda: VALUE.within(1)),
    "shared": lambda: [threads.share(lambda part: None) for _ in range(5)],
    "product": lambda: ops.linear(X_HAND, W_HAND),
    "backward": lambda: ops.linear(X_HAND, W_HAND).sum().backward(),
    "step": step,
    "model": lambda: MODEL(X_HAND).sum().backward(),
    "outside": lambda: [deferred.outside(sum, ()) for _ in range(20)],
}


def storm(clock, count, rng, call, check):
    """Interrupt a call so many times, at random moments; check(whether it was interrupted) each time."""
    start = time.perf_counter()
    for _ in range(3):
        call()
    seconds, interrupted = (time.perf_counter() - start) / 3, 0
    check(False)
    while interrupted < count:
        inside = clock.interrupts(call, rng.uniform(0, 1.1 * seconds))
        check(inside)
        interrupted += inside


def storm_of_blocks(clock, rng, name, count):
    before = traces(clock)

    def check(inside):
        assert traces(clock) == before and VALUE.get() == 0

    storm(clock, count, rng, BLOCKS[name], check)


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_left(clock, rng, name):
    storm_of_blocks(clock, rng, name, 100)


@pytest.mark.long
@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_are_left_whenever(clock, rng, name):
    storm_of_blocks(clock, rng, name, 1000)


# --- estimators -------------------------------------------------------------------------------------------------------
def of_rows(**options):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 6), np.float32)
    return Net(**{"layers": (8, 8), "epochs": 2, "batch_size": 20, "random_state": 0, **options}), (X, X[:, 0] > 0)


def of_images(**options):
    return Net(network(), epochs=1, batch_size=16, random_state=0, **options), images(32)


def of_words(**options):
    words = "the cat sat on the mat and the dog sat on the rug".split() * 4
    return LanguageModel(6, epochs=1, batch_size=4, steps=6, random_state=0, **options), (words,)


def of_sequences(recurrent=LSTM):
    X = np.random.default_rng(0).integers(1, 9, (40, 5))
    layers = [Embedding(9, 4, padding_idx=0, rng=0), recurrent(4, 6, batch_first=True, rng=1), LastStep(), Linear(6, 2, rng=2)]
    return Net(layers, epochs=1, batch_size=20, random_state=0), (X, X[:, 0] > 4)


class Steady(Hook):
    """Changes batches, weights and the course of training, and can go back."""

    def __init__(self):
        self.steps, self.kept = 0, None

    def fit_start(self, run):
        self.steps, self.kept = 0, run.snapshot()

    def before_step(self, run, batch):
        return batch._replace(inputs=batch.inputs * np.float32(0.5))

    def after_update(self, run):
        self.steps += 1
        for tensor in run.model.parameters():
            tensor.assign(tensor.data * np.float32(0.99))

    def epoch_end(self, run, record):
        return {"steps": self.steps}

    def epoch_recorded(self, run, record):
        run.optimizer.learning_rate *= 0.5

    def state(self):
        return self.steps

    def restore(self, state):
        self.steps = state


def of_numbers():
    _, (X, y) = of_rows()
    return NetRegressor((8,), epochs=2, batch_size=20, random_state=0, dropout="batchwise"), (X, X[:, 1] + y)


NETS = {
    **{kind: (lambda kind=kind: of_rows(dropout=kind)) for kind in ("none", "bernoulli", "rdp")},
    "tdp": lambda: of_rows(dropout="tdp", layers=(64, 64)),
    "dsg": lambda: of_rows(dropout=DynamicSparseGraph(0.5), layers=(64, 64)),
    "adam": lambda: of_rows(dropout="rdp", optimizer="adam"),
    "early stopping": lambda: of_rows(early_stopping=True),
    "watched": lambda: of_rows(callbacks=[lambda net, record: time.sleep(1e-4)], early_stopping=True),
    "group lasso": lambda: of_rows(sparsity=GroupLasso(0.01)),
    "pruning": lambda: of_rows(sparsity=MagnitudePruning(0.5, fine_tuning=0.5)),
    "sparse": lambda: of_rows(layers=[SparseLinear(6, 8, 0.5, rng=0), Linear(8, 2, rng=1)]),
    "rewired": lambda: of_rows(layers=[SparseLinear(6, 8, 0.5, rng=0), Linear(8, 2, rng=1)], sparsity=Rewire(every=2)),
    "regressor": of_numbers,
    "rsdp": lambda: of_images(dropout="rsdp"),
    "bsdp": lambda: of_images(dropout="bsdp"),
    "own layer": lambda: of_rows(layers=[Residual(6, 64), Linear(6, 2, rng=2)], dropout="rdp"),
    "own hook": lambda: of_rows(callbacks=[Steady()], dropout="rdp", early_stopping=True),
    "augmented": lambda: of_rows(augment=lambda x, rng, dev: x + np.float32(rng.uniform()), learning_rate_schedule="cosine"),
    "sequences": of_sequences,
    "gru": lambda: of_sequences(GRU),
    "words": lambda: of_words(dropout="rdp"),
    "gates": lambda: of_words(gate_sparsity=0.5),
}


def calls_of(net, given):
    """What is interrupted: training and predicting."""
    calls = [lambda: net.fit(*given)]
    if isinstance(net, LanguageModel):
        return [*calls, lambda: net.perplexity(*given), lambda: net.generate(["the"], 3)]
    return [*calls, lambda: net.partial_fit(*given), lambda: net.predict(given[0])]


def storm_of_fits(clock, rng, name, count):
    """An interrupted call changes nothing, in the estimator or in the process."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        net, given = NETS[name]()
        net.fit(*given)
        left, kept = traces(clock), [state(net)]

        def check(inside):
            now = state(net)
            assert not inside or now == kept[0], "a call without an end has changed the estimator"
            kept[0] = now
            assert traces(clock) == left

        for call in calls_of(net, given):
            storm(clock, count // 3, rng, call, check)
        expected, _ = NETS[name]()
        assert state(net.fit(*given))[1] == state(expected.fit(*given))[1]


@pytest.mark.parametrize("name", NETS)
def test_a_call_is_done_or_undone(clock, rng, name):
    storm_of_fits(clock, rng, name, 30)


@pytest.mark.long
@pytest.mark.parametrize("name", NETS)
def test_a_call_is_done_or_undone_whenever(clock, rng, name):
    """With those of the blocks, more than 25,000 interrupts."""
    storm_of_fits(clock, rng, name, 750)


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.long)])
def test_a_network_is_saved_or_not(clock, rng, tmp_path, count):
    """Nothing else is in the folder, and what is there can be loaded."""
    net, given = of_rows()
    net.fit(*given).save(tmp_path / "net")
    left, kept = traces(clock), state(net)

    def check(inside):
        assert [path.name for path in tmp_path.iterdir()] == ["net"] and traces(clock) == left and state(net) == kept

    storm(clock, count, rng, lambda: net.save(tmp_path / "net"), check)
    np.testing.assert_array_equal(Net.load(tmp_path / "net").predict_proba(given[0]), net.predict_proba(given[0]))


def test_the_storm_finds_what_is_left(clock, rng):
    """A block in Python that is not whole is found out."""

    class Careless:
        def __enter__(self):
            VALUE.default += 1

        def __exit__(self, *error):
            VALUE.default -= 1

    def check(inside):
        assert VALUE.get() == 0

    try:
        with pytest.raises(AssertionError):
            storm(clock, 10_000, rng, entered(Careless), check)
    finally:
        VALUE.default = 0
