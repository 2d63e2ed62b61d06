"""Every op: its value against NumPy, and its gradient by two random projections."""

import numpy as np
import pytest
from scipy import special

from numbanet import Order, Tensor, check_grad, op, ops
from numbanet.plans import BernoulliPlan, RowPlan
from numbanet.sparse import BSR, CSR
from numbanet_kernels.layouts.windows import Window

LABELS = np.array([2, 0, 1, 1], np.int32)
WEIGHTS = np.array([0.1, 0.2, 0.3, 0.4], np.float32)
TARGET = np.linspace(0.1, 0.9, 12, dtype=np.float32).reshape(4, 3)
INDEX = np.array([2, 0, 2])
MEAN, VARIANCE = np.array([[0.5, -1.0, 0.0], [0.3, 1.0, 2.0]], np.float32)
MASK = np.array([[True, False, True, False], [False, False, True, True], [True, True, False, False]])
PICK = np.array([True, False, True, True])
IDS = np.array([[4, 1], [1, 0]])
HOLES = np.array([[1, 0, 0, 1], [0, 0, 0, 0], [0, 1, 1, 1], [0, 0, 0, 1], [1, 0, 0, 0]])


def softmax(x):
    return special.softmax(np.float64(x), axis=-1)


def batch_norm(x, mean, variance, gamma, beta):
    return gamma * (x - mean) / np.sqrt(variance + 0.1) + beta


def windows(x):
    """(N, OH, OW, 2, 2, C): the windows of 2 x 2 of x (N, H, W, C), two apart along the height and one along the width."""
    return np.moveaxis(np.lib.stride_tricks.sliding_window_view(x, (2, 2), (1, 2))[:, ::2], 3, 5)


def binary_cross_entropy(z, t):
    return np.logaddexp(0, z) - t * z


def holey(values, tile=None):
    """HOLES with these values where it is 1, or in the tiles that hold a 1."""
    matrix = CSR.from_dense(HOLES) if tile is None else CSR.from_dense(HOLES).to_bsr(tile)
    if tile is None:
        return np.asarray(CSR(matrix.indptr, matrix.indices, values, HOLES.shape).dense())
    return BSR(matrix.indptr, matrix.indices, values * matrix.inside(), HOLES.shape).dense()


def sparse(tile=None, **options):
    """`linear_sparse` with a weight of HOLES."""
    matrix = CSR.from_dense(HOLES) if tile is None else CSR.from_dense(HOLES).to_bsr(tile)
    return lambda x, values, *b: ops.linear_sparse(x, values, *b, layout=ops.Layout(matrix, x.device), **options)


# name: (op, the same in NumPy, shapes of the inputs, where the inputs lie)
ANY, POSITIVE, APART = "any", "positive", "away from 0"
CASES = {
    "add": (ops.add, np.add, [(3, 4), (3, 4)], ANY),
    "add, broadcast": (ops.add, np.add, [(3, 1, 4), (2, 1)], ANY),
    "sub": (ops.sub, np.subtract, [(3, 4), (4,)], ANY),
    "mul": (ops.mul, np.multiply, [(3, 1), (1, 4)], ANY),
    "div": (ops.div, np.divide, [(3, 4), (3, 1)], POSITIVE),
    "maximum": (ops.maximum, np.maximum, [(3, 4), (3, 4)], APART),
    "minimum": (ops.minimum, np.minimum, [(3, 4), (4,)], APART),
    "number + x": (lambda x: 2 + x, lambda x: 2 + x, [(3,)], ANY),
    "number - x": (lambda x: 2 - x, lambda x: 2 - x, [(3,)], ANY),
    "x / number": (lambda x: x / 4, lambda x: x / 4, [(3,)], ANY),
    "number / x": (lambda x: 4 / x, lambda x: 4 / x, [(3,)], POSITIVE),
    "-x": (lambda x: -x, np.negative, [(3,)], ANY),
    "power": (lambda x: x**3, lambda x: x**3, [(3, 4)], ANY),
    "exp": (ops.exp, np.exp, [(3, 4)], ANY),
    "log": (ops.log, np.log, [(3, 4)], POSITIVE),
    "sqrt": (ops.sqrt, np.sqrt, [(3, 4)], POSITIVE),
    "abs": (ops.abs, np.abs, [(3, 4)], APART),
    "tanh": (ops.tanh, np.tanh, [(3, 4)], ANY),
    "sigmoid": (ops.sigmoid, special.expit, [(3, 4)], ANY),
    "relu": (ops.relu, lambda x: np.maximum(x, 0), [(3, 4)], APART),
    "gelu": (ops.gelu, lambda x: x * special.ndtr(x), [(3, 4)], ANY),
    "softmax": (ops.softmax, softmax, [(4, 3)], ANY),
    "log_softmax": (ops.log_softmax, lambda x: np.log(softmax(x)), [(2, 2, 3)], ANY),
    "sum": (ops.sum, np.sum, [(3, 4)], ANY),
    "sum, axis": (lambda x: x.sum(axis=(0, 2)), lambda x: x.sum(axis=(0, 2)), [(2, 3, 4)], ANY),
    "sum, keepdims": (lambda x: x.sum(axis=-1, keepdims=True), lambda x: x.sum(-1, keepdims=True), [(3, 4)], ANY),
    "mean": (lambda x: x.mean(axis=0), lambda x: x.mean(0), [(3, 4)], ANY),
    "where": (lambda a, b: ops.where(MASK, a, b), lambda a, b: np.where(MASK, a, b), [(3, 4), (4,)], ANY),
    "where, number": (lambda a: ops.where(MASK, 2, a), lambda a: np.where(MASK, 2, a), [(3, 1)], ANY),
    "clip": (lambda x: x.clip(-1, 1.6), lambda x: np.clip(x, -1, 1.6), [(3, 4)], APART),
    "clip, low": (lambda x: x.clip(low=0), lambda x: np.maximum(x, 0), [(3, 4)], APART),
    "clip, high": (lambda x: x.clip(high=0), lambda x: np.minimum(x, 0), [(3, 4)], APART),
    "var": (ops.var, lambda x: np.var(x, ddof=1), [(3, 4)], ANY),
    "var, axis": (lambda x: x.var(axis=(0, 2), correction=0), lambda x: x.var(axis=(0, 2)), [(2, 3, 4)], ANY),
    "std": (lambda x: x.std(axis=1, keepdims=True), lambda x: x.std(axis=1, ddof=1, keepdims=True), [(3, 4)], ANY),
    "std, correction": (lambda x: x.std(axis=0, correction=1.5), lambda x: x.std(axis=0, ddof=1.5), [(5, 2)], ANY),
    "max": (lambda x: x.max(axis=1), lambda x: x.max(1), [(3, 4)], APART),
    "max, all": (ops.max, np.max, [(3, 4)], APART),
    "reshape": (lambda x: x.reshape(2, -1), lambda x: x.reshape(2, -1), [(4, 3)], ANY),
    "transpose": (lambda x: x.transpose(2, 0, 1), lambda x: x.transpose(2, 0, 1), [(2, 3, 4)], ANY),
    "T": (lambda x: x.T, lambda x: x.T, [(2, 3)], ANY),
    "broadcast_to": (lambda x: ops.broadcast_to(x, shape=(2, 3, 4)), lambda x: np.broadcast_to(x, (2, 3, 4)), [(3, 1)], ANY),
    "slice": (lambda x: x[1:, ::2], lambda x: x[1:, ::2], [(3, 4)], ANY),
    "integer": (lambda x: x[-1], lambda x: x[-1], [(3, 4)], ANY),
    "integers": (lambda x: x[-1, 2], lambda x: x[-1, 2], [(3, 4)], ANY),
    "index, repeated": (lambda x: x[INDEX], lambda x: x[INDEX], [(3, 4)], ANY),
    "boolean mask": (lambda x: x[PICK], lambda x: x[PICK], [(4, 2)], ANY),
    "concatenate": (
        lambda a, b: ops.concatenate([a, b], axis=1),
        lambda a, b: np.concatenate([a, b], 1),
        [(2, 3), (2, 1)],
        ANY,
    ),
    "matmul": (ops.matmul, np.matmul, [(3, 4), (4, 2)], ANY),
    "matmul, batch": (ops.matmul, np.matmul, [(2, 3, 4), (4, 2)], ANY),
    "matmul, vector": (ops.matmul, np.matmul, [(3, 4), (4,)], ANY),
    "linear": (ops.linear, lambda x, w, b: x @ w.T + b, [(3, 4), (5, 4), (5,)], ANY),
    "linear, few": (lambda x, w, b: ops.linear(x, w, b, few=True), lambda x, w, b: x @ w.T + b, [(3, 4), (5, 4), (5,)], ANY),
    "linear, few, ReLU": (
        lambda x, w: ops.linear(x, w, relu=True, scale=1.5, few=True),
        lambda x, w: np.maximum(1.5 * x @ w.T, 0),
        [(3, 4), (5, 4)],
        ANY,
    ),
    "linear, scaled": (
        lambda x, w, b: ops.linear(x, w, b, scale=1.5),
        lambda x, w, b: 1.5 * x @ w.T + b,
        [(3, 4), (5, 4), (5,)],
        ANY,
    ),
    "linear, scaled, no bias": (lambda x, w: ops.linear(x, w, scale=1.5), lambda x, w: 1.5 * x @ w.T, [(3, 4), (5, 4)], ANY),
    "linear, ReLU": (
        lambda x, w, b: ops.linear(x, w, b, relu=True),
        lambda x, w, b: np.maximum(x @ w.T + b, 0),
        [(3, 4), (5, 4), (5,)],
        ANY,
    ),
    "linear, sparse": (sparse(), lambda x, v, b: x @ holey(v).T + b, [(3, 4), (7,), (5,)], ANY),
    "linear, sparse, no bias": (sparse(), lambda x, v: x @ holey(v).T, [(3, 4), (7,)], ANY),
    "linear, sparse, ReLU": (sparse(relu=True), lambda x, v, b: np.maximum(x @ holey(v).T + b, 0), [(3, 4), (7,), (5,)], ANY),
    "linear, sparse, kept": (
        sparse(rows=RowPlan(5, 2, 0), cols=RowPlan(4, 2, 1)),
        lambda x, v, b: (x @ holey(v)[:, 1::2].T + b)[:, ::2],
        [(3, 2), (7,), (5,)],
        ANY,
    ),
    "linear, sparse tiles": (sparse(2), lambda x, v, b: x @ holey(v, 2).T + b, [(3, 4), (5, 2, 2), (5,)], ANY),
    "linear, sparse tiles, ReLU": (
        sparse(2, relu=True),
        lambda x, v: np.maximum(x @ holey(v, 2).T, 0),
        [(3, 4), (5, 2, 2)],
        ANY,
    ),
    "batch norm": (
        lambda x, g, b: ops.batch_norm(x, g, b, eps=0.1),
        lambda x, g, b: batch_norm(x, x.mean(0), x.var(0), g, b),
        [(6, 4), (4,), (4,)],
        ANY,
    ),
    "batch norm, given": (
        lambda x, g, b: ops.batch_norm_apply(x, g, b, mean=x.device.upload(MEAN), variance=x.device.upload(VARIANCE), eps=0.1),
        lambda x, g, b: batch_norm(x, MEAN, VARIANCE, g, b),
        [(5, 3), (3,), (3,)],
        ANY,
    ),
    "layer norm": (
        lambda x, g, b: ops.layer_norm(x, g, b, shape=(4,), eps=0.1),
        lambda x, g, b: batch_norm(x, x.mean(-1, keepdims=True), x.var(-1, keepdims=True), g, b),
        [(2, 3, 4), (4,), (4,)],
        ANY,
    ),
    "expand": (
        lambda x: ops.expand(x, plan=RowPlan(5, 2, 1)),
        lambda x: np.stack([0 * x[:, 0], x[:, 0], 0 * x[:, 0], x[:, 1], 0 * x[:, 0]], 1),
        [(3, 2)],
        ANY,
    ),
    "embedding": (lambda w: ops.embedding(w, ids=IDS), lambda w: w[IDS], [(5, 3)], ANY),
    "shuffle": (lambda x: ops.shuffle(x, order=Order([2, 0, 1])), lambda x: x[:, [2, 0, 1]], [(4, 3)], ANY),
    "shuffle and mean": (
        lambda x: ops.shuffle(x, order=Order([2, 0, 1], mean=[3, 4, 5])),
        lambda x: x[:, [2, 0, 1]] - np.array([5, 3, 4]),
        [(4, 3)],
        ANY,
    ),
    "max pool": (
        lambda x: ops.max_pool2d(x, window=Window((2, 2), (2, 1))),
        lambda x: windows(x).max((3, 4)),
        [(2, 4, 3, 2)],
        APART,
    ),
    "convolution and max pool": (
        lambda *t: ops.conv2d(*t, window=Window((1, 1)), relu=True, pool=Window((2, 2), (2, 1))),
        lambda x, w, b: windows(np.maximum(x @ w[..., 0, 0].T + b, 0)).max((3, 4)),
        [(2, 4, 3, 2), (3, 2, 1, 1), (3,)],
        APART,
    ),
    "average pool": (
        lambda x: ops.avg_pool2d(x, window=Window((2, 2), (2, 1))),
        lambda x: windows(x).mean((3, 4)),
        [(2, 4, 3, 2)],
        ANY,
    ),
    "average pool, padding": (
        lambda x: ops.avg_pool2d(x, window=Window((2, 1), (1, 1), (1, 0)), count_include_pad=False),
        lambda x: np.stack([x[:, 0], (x[:, 0] + x[:, 1]) / 2, x[:, 1]], 1),
        [(2, 2, 1, 3)],
        ANY,
    ),
    "average pool, adaptive": (
        lambda x: ops.adaptive_avg_pool2d(x, size=(1, 2)),
        lambda x: np.stack([x[:, :, :2].mean((1, 2)), x[:, :, 1:].mean((1, 2))], 1)[:, None],
        [(2, 4, 3, 2)],
        ANY,
    ),
    "cross entropy": (
        lambda z: ops.softmax_cross_entropy(z, labels=np.int64(LABELS)),
        lambda z: -np.mean(np.log(softmax(z))[np.arange(4), LABELS]),
        [(4, 3)],
        ANY,
    ),
    "cross entropy, weights": (
        lambda z: ops.softmax_cross_entropy(z, labels=z.device.upload(LABELS), weights=z.device.upload(WEIGHTS)),
        lambda z: -np.sum(WEIGHTS * np.log(softmax(z))[np.arange(4), LABELS]),
        [(4, 3)],
        ANY,
    ),
    "cross entropy, smoothed": (
        lambda z: ops.softmax_cross_entropy(z, labels=LABELS, label_smoothing=0.3),
        lambda z: -np.mean(0.7 * np.log(softmax(z))[np.arange(4), LABELS] + 0.3 * np.log(softmax(z)).mean(1)),
        [(4, 3)],
        ANY,
    ),
    "cross entropy, smoothed, weights": (
        lambda z: ops.softmax_cross_entropy(z, labels=LABELS, weights=WEIGHTS, label_smoothing=0.1),
        lambda z: -np.sum(WEIGHTS * (0.9 * np.log(softmax(z))[np.arange(4), LABELS] + 0.1 * np.log(softmax(z)).mean(1))),
        [(4, 3)],
        ANY,
    ),
    "huber error": (
        lambda z: ops.huber_error(z, target=TARGET, delta=0.5),
        lambda z: np.mean(special.huber(0.5, z - TARGET)),
        [(4, 3)],
        ANY,
    ),
    "quantile error": (
        lambda z: ops.quantile_error(z, target=0 * TARGET, level=0.9, weights=WEIGHTS),
        lambda z: np.sum(WEIGHTS * np.maximum(-0.9 * z, 0.1 * z).mean(1)),
        [(4, 3)],
        APART,
    ),
    "squared error": (
        lambda z: ops.squared_error(z, target=z.device.upload(TARGET)),
        lambda z: np.mean((z - TARGET) ** 2),
        [(4, 3)],
        ANY,
    ),
    "absolute error": (
        lambda z: ops.absolute_error(z, target=z.device.upload(TARGET), weights=z.device.upload(WEIGHTS)),
        lambda z: np.sum(WEIGHTS * np.abs(z - TARGET).mean(1)),
        [(4, 3)],
        ANY,
    ),
    "sigmoid cross entropy": (
        lambda z: ops.sigmoid_cross_entropy(z, target=z.device.upload(TARGET)),
        lambda z: np.mean(binary_cross_entropy(z, TARGET)),
        [(4, 3)],
        ANY,
    ),
}


def inputs(rng, shapes, where, dev):
    """Random tensors; "away from 0" are multiples of 0.1 that no difference of 0.01 takes over a kink or a tie."""
    hosts = []
    for i, shape in enumerate(shapes):
        if where == APART:
            size = int(np.prod(shape))
            host = (rng.permutation(2 * size)[:size] - size + 0.5 + 0.3 * i).reshape(shape) / 5
        else:
            host = rng.standard_normal(shape)
        hosts.append(np.abs(host) + 0.5 if where == POSITIVE else host)
    return [Tensor(host, dev, requires_grad=True) for host in hosts]


@pytest.mark.parametrize("name", CASES)
def test_value_and_gradient(dev, rng, name):
    function, expected, shapes, where = CASES[name]
    tensors = inputs(rng, shapes, where, dev)
    value = function(*tensors)
    reference = np.asarray(expected(*(np.float64(t.numpy()) for t in tensors)))
    assert value.shape == reference.shape
    np.testing.assert_allclose(value.numpy(), reference, rtol=2e-5, atol=2e-6)
    check_grad(function, tensors)


@pytest.mark.parametrize("order", [[0, 1], [0, 1, 1], [0, 1, 3], [0, -1, 1], [[0, 1, 2]], [True, False, True], [0.0, 1.0, 2.0]])
def test_an_order_is_a_permutation_of_the_features(dev, order):
    with pytest.raises(ValueError, match="must be a permutation|shuffle: x"):
        ops.shuffle(Tensor(np.ones((2, 3)), dev), order=Order(order))
    with pytest.raises(ValueError, match="mean must be 3 finite numbers"):
        Order([1, 0, 2], mean=[1, 2])


@op
def exp_with_a_wrong_vjp(dev, x):
    return dev.exp(x), (lambda dy: dy,)


@op
def mul_with_its_vjps_swapped(dev, a, b):
    return dev.mul(a, b), (lambda dy: dev.mul(dy, a), lambda dy: dev.mul(dy, b))


@pytest.mark.parametrize("function, count", [(exp_with_a_wrong_vjp, 1), (mul_with_its_vjps_swapped, 2)])
def test_check_grad_finds_a_wrong_gradient(dev, rng, function, count):
    with pytest.raises(AssertionError, match="input 0"):
        check_grad(function, inputs(rng, [(3, 4)] * count, ANY, dev))


def test_dropout_is_its_own_adjoint_and_keeps_the_rate(dev, rng):
    x = Tensor(rng.standard_normal((40, 50)) if dev.name == "cpu" else rng.standard_normal((4, 8)), dev, requires_grad=True)
    plan = BernoulliPlan(x.shape[1], 0.3, key=5, scale=1 / 0.7)
    y = ops.dropout(x, plan=plan)
    y.backward(np.ones(x.shape))
    kept = y.numpy() != 0
    np.testing.assert_allclose(y.numpy()[kept], x.numpy()[kept] / 0.7, rtol=1e-5)
    np.testing.assert_allclose(x.grad.numpy(), kept / 0.7, rtol=1e-5)
    deviations = abs(np.mean(~kept) - 0.3) / np.sqrt(0.3 * 0.7 / kept.size)
    assert deviations < 4.5


BAD = {
    "add": (lambda a, b: a + b, [(3, 4), (3, 5)], r"add: shapes \(3, 4\) and \(3, 5\)"),
    "matmul": (lambda a, b: a @ b, [(3, 4), (3, 5)], r"matmul: a \(3, 4\).*b \(3, 5\)"),
    "linear": (lambda a, b: ops.linear(a, b), [(3, 4), (5, 6)], r"\(3, 4\).*\(5, 6\)"),
    "linear_sparse": (sparse(), [(3, 5), (7,)], r"linear_sparse: x \(3, 5\), values \(7,\) do not match a weight \(5, 4\)"),
    "linear_sparse, values": (sparse(2), [(3, 4), (7,), (5,)], r"linear_sparse: .*values \(7,\) and b \(5,\)"),
    "linear_sparse, kept": (sparse(cols=RowPlan(4, 2, 1)), [(3, 4), (7,)], "and 2 inputs kept"),
    "reshape": (lambda a: a.reshape(5, -1), [(3, 4)], r"reshape.*\(3, 4\).*\(5, -1\)"),
    "transpose": (lambda a: a.transpose(0, 0), [(3, 4)], r"transpose: axes \(0, 0\)"),
    "sum": (lambda a: a.sum(axis=2), [(3, 4)], r"sum: axis 2"),
    "where": (lambda a, b: ops.where(a, b, 0), [(3, 4), (3, 5)], r"where: shapes \(3, 4\) and \(3, 5\)"),
    "equal": (lambda a, b: a == b, [(3, 4), (3, 5)], r"equal: shapes \(3, 4\) and \(3, 5\)"),
    "argmax": (lambda a: a.argmax(2), [(3, 4)], "argmax: axis 2"),
    "argmax, empty": (lambda a: a.argmax(1), [(3, 0)], r"argmax: x \(3, 0\) has nothing along axis 1"),
    "argmax, axes": (lambda a: a.argmax((0, 1)), [(3, 4)], "argmax: axis must be an integer or None"),
    "var": (lambda a: a.var(2), [(3, 4)], "var: axis 2"),
    "clip": (lambda a: a.clip(), [(3, 4)], "clip: needs low, high, or both"),
    "concatenate": (lambda a, b: ops.concatenate([a, b]), [(3, 4), (3, 5)], r"concatenate: shapes"),
    "broadcast_to": (lambda a: ops.broadcast_to(a, shape=(4,)), [(3, 4)], r"broadcast_to: .*\(3, 4\).*\(4,\)"),
    "cross entropy": (lambda z: ops.softmax_cross_entropy(z, labels=np.zeros(4)), [(4, 3)], "labels are float64"),
    "cross entropy, smoothing": (
        lambda z: ops.softmax_cross_entropy(z, labels=LABELS, label_smoothing=1.0),
        [(4, 3)],
        r"label_smoothing must be in \[0, 1\), got 1.0",
    ),
    "huber error": (lambda z: ops.huber_error(z, target=TARGET, delta=0), [(4, 3)], "delta must be above 0, got 0"),
    "quantile error": (lambda z: ops.quantile_error(z, target=TARGET, level=1), [(4, 3)], r"level must be in \(0, 1\), got 1"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_shapes_are_named(dev, rng, name):
    function, shapes, message = BAD[name]
    with pytest.raises(ValueError, match=message):
        function(*inputs(rng, shapes, ANY, dev))


def test_a_mask_of_another_shape_is_refused(dev, rng):
    (x,) = inputs(rng, [(2, 3)], ANY, dev)
    with pytest.raises(IndexError, match="boolean index"):
        x[np.array([True, True, False])]


def test_losses_take_what_they_compare_with_in_any_form(dev):
    z = Tensor([[0.1, 0.2], [0.3, 0.4]], dev)
    target = [[1.0, 2.0], [3.0, 4.0]]
    for loss in (ops.squared_error, ops.absolute_error, ops.sigmoid_cross_entropy, ops.huber_error, ops.quantile_error):
        values = [
            loss(z, target=form, weights=[0.25, 0.75]).item()
            for form in (target, np.array(target), Tensor(target, dev), dev.upload(np.array(target, np.float32)))
        ]
        assert len(set(values)) == 1
    losses = [
        ops.softmax_cross_entropy(z, labels=form, weights=np.ones(2) / 2).item()
        for form in ([0, 1], np.array([0, 1]), Tensor([[1, 0], [0, 1]], dev).argmax(0))
    ]
    assert losses[0] == losses[1] == losses[2]
    with pytest.raises(ValueError, match="NumPy array"):
        ops.softmax_cross_entropy(z, labels=Tensor([0, 1], dev))


@pytest.mark.parametrize("name", [name for name in CASES if "cross entropy" in name or "error" in name])
def test_a_loss_knows_its_own_gradient(dev, rng, name):
    """backward() takes it as it is; backward(1) and backward(2) multiply."""
    function, _, shapes, where = CASES[name]
    (x,), found = inputs(rng, shapes, where, dev), []
    for dy in (None, 1.0, 2.0):
        x.zero_grad()
        function(x).backward(dy)
        found.append(x.grad.numpy())
    np.testing.assert_array_equal(found[0], found[1])
    np.testing.assert_array_equal(2 * found[0], found[2])
