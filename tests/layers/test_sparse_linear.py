"""SparseLinear: a layer like others, of a weight that is not all there."""

import copy
import pickle
import warnings

import numpy as np
import pytest

from numbanet import (
    SGD,
    Adam,
    BernoulliPlan,
    Context,
    Flow,
    Linear,
    Net,
    Plans,
    ReLU,
    RowPlan,
    Sequential,
    SparseLinear,
    Tensor,
    TilePlan,
    device,
    ops,
)
from numbanet.datasets import load_digits
from numbanet.layers import DENSE, ActivationSpec, Columns, sparse, to
from numbanet.plans import on_device
from numbanet.sparse import BSR, CSR


def weight(rng, kind="csr", shape=(13, 10), density=0.3):
    """A matrix with holes, and values that are small multiples of each other."""
    dense = rng.standard_normal(shape).astype(np.float32)
    if kind == "bsr":
        return BSR.from_dense(dense, 4, rng.random(tuple(-(-n // 4) for n in shape)) < 0.5)
    found = CSR.from_dense(dense, rng.random(shape) < density)
    return found.to_ell() if kind == "ell" else found


def test_lists_are_taken_for_every_array():
    layout = ops.Layout(CSR.from_dense(np.float32([[2, 0, 1], [0, 0, 0]])), device("cpu"))
    found = ops.linear_sparse([[1, 5, 3]], [2, 1], [0.5, -1], layout=layout)
    np.testing.assert_array_equal(found.numpy(), [[5.5, -1]])


KINDS = pytest.mark.parametrize("kind", ["csr", "ell", "bsr"])


@KINDS
def test_equals_a_linear_with_zeros(dev, rng, kind):
    """Outputs, dx, and the gradients of the values and the bias."""
    w, x = weight(rng, kind), rng.standard_normal((2, 3, 10)).astype(np.float32)
    ours, theirs = SparseLinear(10, 13, weight=w, device=dev), Linear(10, 13)
    theirs.weight, theirs.bias = (Tensor(a, requires_grad=True) for a in (w.dense(), rng.standard_normal(13)))
    ours.bias.assign(dev.upload(theirs.bias.numpy()))
    dy = rng.standard_normal((2, 3, 13)).astype(np.float32)
    results = []
    for layer, on in ((ours, dev), (theirs, device("cpu"))):
        leaf = Tensor(x, on, requires_grad=True)
        y = Sequential([layer, ReLU()])(leaf)
        y.backward(dy)
        results.append([y.numpy(), leaf.grad.numpy(), layer.bias.grad.numpy()])
    for found, reference in zip(*results):
        np.testing.assert_allclose(found, reference, rtol=1e-4, atol=1e-5)
    matrix = ours.weight
    gradient = type(matrix)(matrix.indptr, matrix.indices, ours.values.grad.numpy(), matrix.shape)
    ones = type(matrix)(
        matrix.indptr, matrix.indices, np.where(matrix.inside(), 1, 0) if kind == "bsr" else np.ones(matrix.nnz), matrix.shape
    ).dense()
    np.testing.assert_allclose(gradient.dense(), theirs.weight.grad.numpy() * ones, rtol=1e-4, atol=1e-5)


@KINDS
@pytest.mark.parametrize(
    "rows, cols",
    [
        (RowPlan(13, 3, 1, 3.0), None),
        (None, RowPlan(10, 2, 1)),
        (RowPlan(13, 2, 0, 2.0), RowPlan(10, 3, 2)),
        (BernoulliPlan(13, 0.5, 3), None),
    ],
)
def test_planned_equals_masked(dev, rng, kind, rows, cols):
    layer, x = SparseLinear(10, 13, weight=weight(rng, kind), device=dev), rng.standard_normal((4, 10)).astype(np.float32)
    compact = x if cols is None else x[:, cols.mask().astype(bool)]
    flow = Flow(Tensor(compact, dev, requires_grad=True), DENSE if cols is None else Columns(on_device(cols, dev)))
    step = Context(dev, {layer: rows} if rows else {})
    y = layer.forward(flow, step).dense()
    x = x if cols is None else x * cols.mask()
    dense = x @ layer.weight.dense().T
    if isinstance(rows, BernoulliPlan):
        dense = ops.dropout(Tensor(dense, dev), plan=rows).numpy()
    elif rows is not None:
        dense = dense * rows.mask() * rows.scale
    np.testing.assert_allclose(y.numpy(), dense, rtol=1e-4, atol=1e-5)
    y.backward(np.ones(y.shape))
    assert layer.values.grad.shape == layer.values.shape and flow.x.grad.shape == compact.shape


# --- making -----------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("density", [0.02, 0.1, np.float32(0.25)])
def test_a_density_gives_each_neuron_its_share_of_inputs(density):
    layer = SparseLinear(300, 200, density=density, rng=0)
    found = layer.weight
    counts = np.diff(found.indptr)
    assert found.nnz == round(density * 300 * 200) and counts.max() - counts.min() <= 1
    columns = np.bincount(found.indices, minlength=300)
    assert columns.std() == pytest.approx(np.sqrt(200 * density * (1 - density)), rel=0.25)  # drawn by chance
    other = SparseLinear(300, 200, density=density, rng=0).weight
    np.testing.assert_array_equal(found.dense(), other.dense())


@pytest.mark.parametrize(
    "init, variance_factor, variance", [("he", 1.0, 2 / 30), ("he", 0.3, 0.6 / 30), ("glorot", 1.0, 2 / 50)]
)
def test_initial_values_count_the_inputs_that_are_there(init, variance_factor, variance):
    values = SparseLinear(300, 200, density=0.1, init=init, variance_factor=variance_factor, rng=0).values.numpy()
    assert values.var() == pytest.approx(variance, rel=0.03) and abs(values.mean()) < 5 * np.sqrt(variance / values.size)


def test_it_says_where_a_dense_layer_is_faster():
    with pytest.warns(UserWarning, match=r"SparseLinear\(20, 30\): its density is 80%; above .* a dense Linear"):
        SparseLinear(20, 30, density=0.8)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        SparseLinear(20, 30, density=sparse.BREAK_EVEN)


@pytest.mark.parametrize(
    "make, error, message",
    [
        (lambda: SparseLinear(0, 4), ValueError, "in_features must be a positive integer, got 0"),
        (lambda: SparseLinear(4, 3.0), ValueError, "out_features must be a positive integer, got 3.0"),
        (lambda: SparseLinear(4, 4, density=0), ValueError, r"density must be in \(0, 1\], got 0"),
        (lambda: SparseLinear(4, 4, density=1.5), ValueError, "density must be in"),
        (lambda: SparseLinear(4, 4, density=True), ValueError, "density must be in .*, got True"),
        (lambda: SparseLinear(4, 4, init="zeros"), ValueError, "'he' or 'glorot'"),
        (lambda: SparseLinear(4, 4, variance_factor=0), ValueError, "variance_factor must be"),
        (lambda: SparseLinear(4, 5, weight=CSR.from_dense(np.eye(4))), ValueError, r"the weight is \(4, 4\), not .* \(5, 4\)"),
        (lambda: SparseLinear(4, 4, weight=np.eye(4)), TypeError, "must be a CSR, ELL or BSR, got ndarray"),
        (
            lambda: SparseLinear(4, 3, rng=0)(Tensor(np.ones((2, 5)))),
            ValueError,
            r"x \(2, 5\) does not match the weight \(3, 4\)",
        ),
        (
            lambda: Sequential([SparseLinear(4, 3, rng=0)]).cost(ActivationSpec((7, 5)), Plans()),
            ValueError,
            "it takes 4 features",
        ),
        (lambda: planned(RowPlan(9, 2, 0)), ValueError, "is not made for output, of shape"),
        (lambda: planned(TilePlan((3, 4), 2, 2, 0)), TypeError, "does not know the plan"),
    ],
)
def test_misuse_is_named(make, error, message):
    with pytest.raises(error, match=message):
        make()


def planned(plan):
    layer = SparseLinear(4, 3, rng=0)
    return layer(Tensor(np.ones((2, 4))), {layer: plan})


def test_cost_counts_what_is_there():
    layer = SparseLinear(40, 30, density=0.1, rng=0)
    cost, spec = layer.cost(ActivationSpec((7, 40), differentiable=True), Plans())
    assert spec.shape == (7, 30) and (cost.forward, cost.backward) == (2 * 7 * 120, 4 * 7 * 120)
    planned, spec = layer.cost(ActivationSpec((7, 40), RowPlan(40, 2, 0)), Context(plans={layer: RowPlan(30, 3, 0)}).plans)
    assert planned.flops == pytest.approx(4 * 7 * 120 / 6) and spec.plan == RowPlan(30, 3, 0)
    assert repr(layer) == "SparseLinear(40, 30, density=0.1)"


# --- state ------------------------------------------------------------------------------------------------------------
@KINDS
def test_a_state_has_the_names_of_pytorchs_parts_and_can_be_loaded(dev, rng, kind):
    torch = pytest.importorskip("torch")
    first, second = (SparseLinear(12, 8, weight=weight(rng, kind, (8, 12), 0.2), device=dev) for _ in range(2))
    state = Sequential([first]).state_dict()
    assert list(state) == ["0.crow_indices", "0.col_indices", "0.values", "0.bias"]
    theirs = first.weight.to_torch()
    for name in ("crow_indices", "col_indices", "values"):
        np.testing.assert_array_equal(state[f"0.{name}"], getattr(theirs, name)().numpy())
    if second.values.shape != first.values.shape:
        with pytest.raises(ValueError, match="has shape"):
            Sequential([second]).load_state_dict(state)
    other = SparseLinear(12, 8, weight=shifted(first.weight), device=dev)
    x = Tensor(rng.standard_normal((3, 12)), dev)
    assert not np.allclose(other(x).numpy(), first(x).numpy())
    Sequential([other]).load_state_dict({name: torch.from_numpy(value) for name, value in state.items()})
    np.testing.assert_array_equal(other(x).numpy(), first(x).numpy())


def shifted(of):
    """A weight of as many entries in each row, at other columns."""
    dense = np.roll(of.dense(), 4, axis=1)
    return CSR.from_dense(dense, dense != 0) if isinstance(of, CSR) else BSR.from_dense(dense, of.tile)


@pytest.mark.parametrize(
    "make", [lambda layer: layer, lambda layer: Sequential([Sequential([ReLU(), layer])])], ids=["layer", "network"]
)
@pytest.mark.parametrize("kind", ["csr", "bsr"])
def test_a_state_that_is_no_structure_is_refused(rng, kind, make):
    layer = make(SparseLinear(10, 13, weight=weight(rng, kind)))
    x, name = Tensor(np.ones((2, 10))), next(name for name, *_ in layer.named() if name.endswith("col_indices"))
    state = layer.state_dict()
    before = np.array(layer(x).numpy())
    with pytest.raises(ValueError, match="col_indices has numbers that are no int32"):
        layer.load_state_dict({**state, name: state[name] + 0.5})
    with pytest.raises(ValueError, match=f"{kind.upper()}: .*row .* is not sorted"):
        layer.load_state_dict(
            {key: array[::-1] if key == name else array + (array.dtype == np.float32) for key, array in state.items()}
        )
    np.testing.assert_array_equal(layer(x).numpy(), before)


@KINDS
def test_copies_pickles_and_other_devices(dev, rng, kind):
    layer, x = SparseLinear(10, 13, weight=weight(rng, kind)), rng.standard_normal((3, 10)).astype(np.float32)
    expected = layer(Tensor(x)).numpy()
    for other in (pickle.loads(pickle.dumps(layer)), copy.deepcopy(layer)):
        np.testing.assert_array_equal(other(Tensor(x)).numpy(), expected)
        assert other.col_indices.dtype == np.int32 and other.values is not layer.values
    to(layer, dev)
    np.testing.assert_allclose(layer(Tensor(x, dev)).numpy(), expected, rtol=1e-5, atol=1e-6)


def test_devices_that_share_arrays_have_layouts_of_their_own(rng):
    layer, x = SparseLinear(10, 6, density=0.5, rng=0), rng.standard_normal((4, 10)).astype(np.float32)
    expected = layer(Tensor(x)).numpy()
    to(layer, "cpu:1")
    np.testing.assert_allclose(layer(Tensor(x, device="cpu:1")).numpy(), expected, rtol=1e-6)


def test_a_file_is_compact():
    """Indices and values of what is there, and little else."""
    layer = SparseLinear(500, 400, density=0.05, rng=0)
    assert len(pickle.dumps(layer)) < 8 * layer.values.size + 4 * 2 * 401 + 2000


# --- training ---------------------------------------------------------------------------------------------------------
@KINDS
@pytest.mark.parametrize("make", [lambda p: SGD(p, 0.1, momentum=0.9), lambda p: Adam(p, 0.01)], ids=["sgd", "adam"])
def test_an_update_changes_its_values_alone(dev, rng, kind, make):
    layer = SparseLinear(10, 13, weight=weight(rng, kind), device=dev)
    before, optimizer = layer.state_dict(), make(list(layer.parameters()))
    for _ in range(2):
        layer(Tensor(rng.standard_normal((4, 10)), dev)).sum().backward()
        optimizer.step()
    after = layer.state_dict()
    assert all(np.array_equal(before[name], after[name]) for name in ("crow_indices", "col_indices"))
    assert not np.array_equal(before["values"], after["values"])
    assert np.count_nonzero(layer.weight.dense()) == np.count_nonzero(weight(np.random.default_rng(7), kind).dense())


@pytest.mark.slow
@pytest.mark.parametrize("dropout", ["none", "bernoulli", "rdp"])
def test_a_network_learns(dropout):
    X, y, X_test, y_test = load_digits()
    layers = [
        SparseLinear(64, 256, density=0.1, rng=0),
        ReLU(),
        SparseLinear(
            256,
            128,
            weight=BSR.from_dense(
                np.random.default_rng(0).standard_normal((128, 256)) / 8, 16, np.random.default_rng(1).random((8, 16)) < 0.3
            ),
        ),
        ReLU(),
        Linear(128, 10, rng=2),
    ]
    net = Net(layers, epochs=25, dropout=dropout, dropout_rate=0.3, learning_rate=0.05, random_state=0).fit(X, y)
    assert net.score(X_test, y_test) > 0.92
    again = pickle.loads(pickle.dumps(net))
    np.testing.assert_array_equal(again.predict(X_test), net.predict(X_test))
    assert [type(layer) for layer in net.model_.layers][:3] == [SparseLinear, ReLU, SparseLinear]


@pytest.mark.parametrize("optimizer", ["sgd", "adam"])
def test_a_layer_without_tiles_learns_its_bias(optimizer, dev, rng):
    x, y = rng.standard_normal((12, 8)), np.arange(12) % 3
    layers = [SparseLinear(8, 6, weight=BSR.from_dense(np.zeros((6, 8)), 4)), ReLU(), Linear(6, 3, rng=0)]
    layers[0].bias.numpy()[...] = 1
    net = Net(layers, epochs=2, batch_size=6, optimizer=optimizer, random_state=0, device=dev.name).fit(x, y)
    assert net.model_.layers[0].values.shape == (0, 4, 4) and (net.model_.layers[0].bias.numpy() != 1).any()
    assert np.isfinite(net.predict_proba(x)).all()


# --- rewiring ---------------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("rows, cols", [(None, None), (RowPlan(13, 3, 1), RowPlan(10, 2, 1))])
def test_rewiring_drops_the_smallest_and_grows_by_the_dense_gradient(dev, rng, rows, cols):
    layer = SparseLinear(10, 13, weight=weight(rng), device=dev)
    before, x, dy = layer.weight, rng.standard_normal((4, 10)).astype(np.float32), rng.standard_normal((4, 13))
    layer.trace, compact = [], x if cols is None else x[:, cols.mask().astype(bool)]
    flow = Flow(Tensor(compact, dev), DENSE if cols is None else Columns(on_device(cols, dev)))
    layer.forward(flow, Context(dev, {layer: rows} if rows else {})).dense().backward(dy)
    dense = (dy * (1 if rows is None else rows.mask())).T @ (x * (1 if cols is None else cols.mask()))
    places, after = layer.rewire(9), layer.weight
    assert after.nnz == before.nnz == places.size and np.count_nonzero(places < 0) == 9
    np.testing.assert_array_equal(after.values, np.append(before.values, 0)[places])
    stays = np.sort(np.argsort(np.abs(before.values), kind="stable")[9:])
    np.testing.assert_array_equal(np.sort(places[places >= 0]), stays)
    was = before.rows * 10 + before.indices
    now = after.rows * 10 + after.indices
    np.testing.assert_array_equal(now[places >= 0], was[places[places >= 0]])  # what stays is where it was
    free = np.setdiff1d(np.arange(130), was[stays])
    sizes = np.abs(dense).ravel()
    assert sizes[now[places < 0]].min() >= np.sort(sizes[free])[-9] * (1 - 1e-5)
    np.testing.assert_allclose(layer(Tensor(x, dev)).numpy(), x @ after.dense().T, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    "trace, count, message",
    [
        (None, 1, "no gradient is stored"),
        ([], 1, "no gradient is stored"),
        (None, -1, "count must be from 0 to the number of entries, 2"),
        (None, 3, "got 3"),
    ],
)
def test_rewiring_without_a_gradient_or_beyond_what_is_there_is_named(trace, count, message):
    layer = SparseLinear(4, 4, weight=CSR.from_dense(np.diag([1, 0, 0, 1])))
    layer.trace = trace
    if "count" in message or "got" in message:
        layer.trace = []
        layer(Tensor(np.ones((1, 4)))).sum().backward()
    with pytest.raises(ValueError, match=message):
        layer.rewire(count)


def test_tiles_are_not_rewired(rng):
    with pytest.raises(TypeError, match="this weight consists of tiles"):
        SparseLinear(10, 13, weight=weight(rng, "bsr")).rewire(1)


def test_a_traced_layer_is_not_recorded_and_its_copies_are_not_traced():
    layer = SparseLinear(4, 3, rng=0)
    assert layer.records
    layer.trace = []
    assert not layer.records and copy.deepcopy(layer).trace is None
