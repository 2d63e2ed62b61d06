"""What users write themselves, each in at most 40 lines and with nothing but public names: they train like numbanet's own."""

import dataclasses
import inspect
import os
import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numbanet import (
    SGD,
    AxisPlan,
    Dropout,
    Hook,
    IndexPlan,
    Layer,
    Linear,
    Loss,
    Net,
    Optimizer,
    Plan,
    Plans,
    ReLU,
    RowDropout,
    Tensor,
    check_grad,
    concatenate,
    op,
)
from numbanet.layers import ActivationSpec, Cost


# --- an op, and a layer that calls it ---------------------------------------------------------------------------------
@op
def swish(dev, x, gain):
    """y[n, i] = x[n, i] sigmoid(gain[0] x[n, i])"""
    g = dev.broadcast_to(dev.reshape(gain, (1, 1)), x.shape)
    s = dev.sigmoid(dev.mul(g, x))

    def slope(dy, other):
        """dy x s (1 - s) other"""
        return dev.mul(dev.sigmoid_grad(dev.mul(dy, x), s), other)

    return dev.mul(x, s), (
        lambda dy: dev.add(dev.mul(dy, s), slope(dy, g)),
        lambda dy: dev.reshape(dev.sum(slope(dy, x)), (1,)),
    )


class Swish(Layer):
    """An activation with a parameter of its own."""

    def __init__(self):
        self.gain = Tensor([1.0], requires_grad=True)

    def __call__(self, x):
        return swish(x, self.gain)

    def cost(self, spec, plans):
        size = float(np.prod(spec.shape))
        return Cost(4 * size, 8 * size), spec._replace(plan=None, differentiable=True)


class SkipConnection(Layer):
    """y = x + W2 relu(W1 x + b1) + b2, of layers that it holds."""

    def __init__(self, width):
        self.inner = [Linear(width, width, rng=2), ReLU(), Linear(width, width, rng=3)]

    def __call__(self, x):
        y = x
        for layer in self.inner:
            y = layer(y)
        return x + y


# --- a plan and its policy --------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Run(AxisPlan):
    """Keep `length` neurons side by side, from `start` on, around the end."""

    n: int
    start: int
    length: int
    scale: float = 1.0

    def indices(self):
        return np.sort((self.start + np.arange(self.length)) % self.n)


class RunDropout(Dropout):
    name = "run"

    def plan(self, site, rng):
        n = site.shape[0]
        length = max(1, round(n * (1 - self.rate_of(site))))
        return Run(n, int(rng.integers(n)), length, n / length)


class LoudDropout(Dropout):
    """Keeps the neurons whose weights answer loudest to the batch: a plan that is chosen in the step."""

    name, data_dependent = "loud", True

    def plan(self, site, rng):
        return None

    def choose(self, site, x, w, rng):
        loud = np.abs(x.numpy() @ w.numpy().T).sum(0)
        count = max(1, round(len(loud) * (1 - self.rate_of(site))))
        return IndexPlan(len(loud), np.sort(np.argsort(loud)[-count:]), len(loud) / count)


# --- an optimiser -----------------------------------------------------------------------------------------------------
class RMSprop(Optimizer):
    """s = 0.9 s + 0.1 g²;  w -= lr g / (sqrt(s) + eps)"""

    def update(self, dev, due, numbers):
        for parameter, (w, s), g, packing in due:
            g = parameter.gradient.dense(dev) if packing else g
            g = dev.reshape(g, w.shape)
            dev.add(dev.affine(s, mul=0.9), dev.affine(dev.mul(g, g), mul=0.1), out=s)
            dev.sub(w, dev.affine(dev.div(g, dev.affine(dev.sqrt(s), add=1e-6)), mul=self.learning_rate), out=w)


# --- a hook, and a loss -----------------------------------------------------------------------------------------------
class WarmUp(Hook):
    """The learning rate grows to its full size in the first epochs."""

    watches = False  # weights stay as they are

    def __init__(self, epochs):
        self.epochs = epochs

    def epoch_start(self, run, epoch):
        self.factor = min(1.0, (epoch + 1) / self.epochs)
        self.whole = run.optimizer.learning_rate
        run.optimizer.learning_rate = self.whole * self.factor

    def epoch_end(self, run, record):
        run.optimizer.learning_rate = self.whole
        return {"warmth": self.factor}


class Focal(Loss):
    """-(1 - p)² log p of the right class's probability p: what is right already counts little (Lin et al. 2017, eq. 4)."""

    def __call__(self, output, target):
        p = (output.softmax() * np.eye(output.shape[1])[target.numpy()]).sum(1)
        return -((1.0 - p) ** 2) * (p + 1e-7).log()


# --- they work --------------------------------------------------------------------------------------------------------
CASES = {
    "op and layer": {"layers": lambda: [Linear(6, 9, rng=0), Swish(), Linear(9, 3, rng=1)], "dropout": RowDropout(0.4)},
    "layer that holds others": {
        "dropout": RowDropout(0.4),
        "learning_rate": 0.002,
        "layers": lambda: [Linear(6, 9, rng=0), SkipConnection(9), Linear(9, 40, rng=1), ReLU(), Linear(40, 3, rng=4)],
    },
    "plan and policy": {"layers": lambda: [Linear(6, 9, rng=0), ReLU(), Linear(9, 3, rng=1)], "dropout": RunDropout(0.5)},
    "policy that looks": {"layers": lambda: [Linear(6, 9, rng=0), ReLU(), Linear(9, 3, rng=1)], "dropout": LoudDropout(0.5)},
    "hook": {
        "layers": lambda: [Linear(6, 9, rng=0), ReLU(), Linear(9, 3, rng=1)],
        "dropout": RowDropout(0.4),
        "callbacks": [WarmUp(10)],
        "learning_rate": 0.02,
    },
    "loss": {
        "layers": lambda: [Linear(6, 9, rng=0), ReLU(), Linear(9, 3, rng=1)],
        "dropout": RowDropout(0.4),
        "loss": Focal(),
        "learning_rate": 0.03,
    },
    "optimiser": {
        "layers": lambda: [Linear(6, 9, rng=0), ReLU(), Linear(9, 3, rng=1)],
        "dropout": RowDropout(0.4),
        "optimizer": RMSprop,
        "learning_rate": 0.01,
    },
}


def fitted(name, rng, n=60, **options):
    y = np.arange(n) % 3
    X = 0.4 * rng.standard_normal((n, 6)) + y[:, None]
    given = {key: value() if key == "layers" else value for key, value in CASES[name].items()}
    return Net(**{"epochs": 40, "batch_size": 12, "random_state": 0, **given, **options}).fit(X, y), X, y


@pytest.mark.parametrize("name", CASES)
def test_it_fits_predicts_pickles_and_counts(name, rng):
    net, X, y = fitted(name, rng)
    assert net.score(X, y) > 0.75 and net.history_[-1]["loss"] < net.history_[0]["loss"]
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(net)).predict(X), net.predict(X))
    shares = [record["flops_share"] for record in net.history_]
    assert all(0 < share <= 1 for share in shares) and np.mean(shares) < 0.9
    assert np.array_equal(net.partial_fit(X, y).predict(X), net.predict(X))


def test_a_hook_changes_training_and_says_so(rng):
    net, *_ = fitted("hook", rng, epochs=12)
    assert [record["learning_rate"] for record in net.history_] == pytest.approx([0.02 * min(1, n / 10) for n in range(1, 13)])
    assert [record["warmth"] for record in net.history_][:2] == [0.1, 0.2] and net.optimizer_.learning_rate == 0.02


def test_a_loss_has_the_right_value_and_gradient(dev, rng):
    x, target = Tensor(rng.standard_normal((5, 3)), dev, requires_grad=True), rng.integers(0, 3, 5)
    loss = Focal().mean(x, dev.upload(target.astype(np.int32)), None)
    z = np.float64(x.numpy())
    p = (np.exp(z) / np.exp(z).sum(1, keepdims=True))[np.arange(5), target]
    assert loss.item() == pytest.approx((-((1 - p) ** 2) * np.log(p)).mean(), rel=1e-5)
    check_grad(lambda x: Focal().mean(x, dev.upload(target.astype(np.int32)), None), [x])


def test_a_layer_costs_what_the_layers_that_it_holds_do():
    """Side by side as well, where the second does not take what the first gives."""
    spec, plans = ActivationSpec((12, 9), None, True), Plans("cpu")
    one = Linear(9, 9).cost(spec, plans)[0]
    assert SkipConnection(9).cost(spec, plans)[0] == one.plus(one)

    class Sides(Layer):
        def __init__(self):
            self.left, self.right = Linear(9, 4), Linear(9, 5)

        def __call__(self, x):
            return concatenate([self.left(x), self.right(x)], axis=1)

    found, both = Sides().cost(spec, plans), (Linear(9, n).cost(spec, plans)[0] for n in (4, 5))
    assert found[0] == next(both).plus(next(both)) and found[1].shape == (12, 9)


def test_a_policy_looks_at_each_site_but_the_answer(rng):
    """Also where what comes to a layer is compact: it sees the dense form."""
    seen = set()

    class Watch(LoudDropout):
        def choose(self, site, x, w, rng):
            seen.add((site.number, x.shape[1], w.shape))
            return super().choose(site, x, w, rng)

    y = np.arange(24) % 3
    Net((8, 5), dropout=Watch((0.5, 0.3)), epochs=1, random_state=0).fit(rng.standard_normal((24, 6)), y)
    assert seen == {(0, 6, (8, 6)), (1, 8, (5, 8))}


@pytest.mark.parametrize("name", CASES)
def test_it_runs_where_passes_are_recorded(dev, name):
    nets = [fitted(name, np.random.default_rng(0), 24, epochs=2, device=where)[0] for where in ("cpu", dev.name)]
    for ours, theirs in zip(*(net.model_.parameters() for net in nets), strict=True):
        np.testing.assert_allclose(ours.numpy(), theirs.numpy(), rtol=1e-4, atol=1e-5)


def test_the_op_has_the_right_gradient(dev, rng):
    check_grad(swish, [Tensor(rng.standard_normal((4, 3)), dev, requires_grad=True), Tensor([0.7], dev, requires_grad=True)])


@pytest.mark.parametrize(
    "written", [swish.__wrapped__, Swish, SkipConnection, Run, RunDropout, LoudDropout, RMSprop, WarmUp, Focal]
)
def test_it_is_short(written):
    assert len(inspect.getsource(written).splitlines()) <= 40


class OnlyAMask:
    """What is no plan: nothing says how to compute with it."""

    scale, density, trivial = 1.0, 0.5, False

    def mask(self):
        return np.arange(9) % 2 == 0


class Unknown(Plan):
    """A plan that no layer knows."""

    def mask(self):
        return np.arange(9) % 2 == 0


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize("plan", [OnlyAMask, Unknown, lambda: np.arange(3)])
def test_a_plan_that_nobody_knows_is_refused_not_ignored(plan, chosen, rng):
    class Mine(Dropout):
        data_dependent = chosen

        def plan(self, site, rng):
            return None if chosen else plan()

        def choose(self, site, x, w, rng):
            return plan()

    assert Mine.name == "Mine"
    CASES["unknown"] = {"layers": lambda: [Linear(6, 9), ReLU(), Linear(9, 3)], "dropout": Mine(0.5)}
    with pytest.raises(TypeError, match=r"Linear\(6, 9\): .*(is not a Plan|it does not know the plan)"):
        fitted("unknown", rng)
    del CASES["unknown"]


def test_a_policy_that_looks_at_its_input_must_choose():
    with pytest.raises(TypeError, match=r"Blind is data_dependent, and has no method choose: define choose\(site, x, w, rng\)"):
        type("Blind", (RunDropout,), {"data_dependent": True})(0.5)


def test_vjps_are_counted_and_their_shapes_checked():
    @op
    def one_too_few(dev, a, b):
        return dev.add(a, b), (lambda dy: dy,)

    @op
    def wrong_shape(dev, a):
        return dev.sum(a, axis=1), (lambda dy: dy,)

    @op
    def value_alone(dev, a):
        return dev.mul(a, a)

    @op
    def no_tuple(dev, a):
        return dev.mul(a, a), lambda dy: dev.mul(dy, a)

    x = Tensor(np.ones((2, 3)), requires_grad=True)
    for wrong in (value_alone, no_tuple):
        with pytest.raises(TypeError, match=rf"{wrong.__name__}: it must return \(array, vjps\), where vjps is a tuple"):
            wrong(x)
    with pytest.raises(TypeError, match=r"check_grad: .*; for one tensor x write \[x\]"):
        check_grad(swish, x)
    with pytest.raises(TypeError, match="one_too_few: it gives 1 vjps for 2 inputs"):
        one_too_few(x, x)
    with pytest.raises(ValueError, match=r"wrong_shape: a vjp gives a gradient of shape \(2,\) for an input of shape \(2, 3\)"):
        wrong_shape(x).backward(np.ones(2))
    assert x.gradient is None and SGD([x], 0.1).step() == {}


# --- a device ---------------------------------------------------------------------------------------------------------
TABLE = '''
"""A device whose products are NumPy's, in float64."""
import numpy as np
from numbanet_kernels import cpu

globals().update({name: f for name, f in vars(cpu).items() if callable(f) and not name.startswith("_")})

def records():
    return False

def gemm(a, b, ta=False, tb=False, bias=None, relu=False, scale=1.0, where=None, out=None):
    c = scale * np.float64(a.T if ta else a) @ (b.T if tb else b)
    c = c if bias is None else c + bias
    c = np.maximum(c, 0) if relu else c
    c = np.float32(c if where is None else c * (where > 0))
    return c if out is None else np.copyto(out, c) or out
'''
TRAINED = """
import sys
import numpy as np
from numbanet import Net, device
from numbanet.device import available

X, y = np.random.default_rng(0).standard_normal((90, 12), np.float32), np.arange(90) % 3
exact, usual = (Net((20,), device=name, dropout="rdp", epochs=3, random_state=0).fit(X, y) for name in ("exact", "cpu"))
sys.modules["torch"] = None  # slow to import
found = available()
del sys.modules["torch"]
assert exact.model_.layers[0].weight.device is device("exact") and "exact" in found and "broken" not in found
np.testing.assert_allclose(exact.predict_proba(X), usual.predict_proba(X), rtol=1e-4, atol=1e-5)
for name in ("broken", "failing", "absent"):
    try:
        device(name)
    except (RuntimeError, ValueError) as error:
        print(error)
"""


@pytest.mark.slow
def test_a_device_from_another_package(tmp_path):
    """Found by its entry point; one that lacks a library says so, and an unknown one which there are."""
    (tmp_path / "exact_device.py").write_text(TABLE)
    (tmp_path / "broken_device.py").write_text("raise ImportError('it needs the library that nobody has: pip install luck')")
    (tmp_path / "failing_device.py").write_text("1 / 0")
    info = tmp_path / "exact_device-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: exact-device\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[numbanet.devices]\nexact = exact_device\nbroken = broken_device\nfailing = failing_device\n"
    )
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parents[2])])
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", TRAINED], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    broken, failing, absent = done.stdout.splitlines()
    assert "its table failing_device cannot be imported (ZeroDivisionError: division by zero)" in failing
    assert "'broken' is not available here: it needs the library that nobody has: pip install luck" in broken
    assert "there is no device 'absent'" in absent and "'exact'" in absent
