"""Kinds of steps that differ only in sizes from a recorded one are recorded by one run, if they call the same loops."""

from numbanet import Layer, Linear, ReLU, RowDropout, op
from numbanet_kernels.runtime import tape

from .test_recorded_steps import alone, equal, fit, replays  # noqa: F401  a fixture


def test_kinds_that_differ_only_in_sizes_are_recorded_at_once(monkeypatch):
    """Only the first kind runs op by op and has a trial; results are those of steps that are not recorded."""
    trials, recorded, options = [], [], {"dropout": RowDropout(0.6, dp_max=3), "layers": (24, 36), "epochs": 5}

    def record(self, work, arena, known=(), original=tape.Tape.__init__):
        recorded.append(bool(known))
        original(self, work, arena, known)

    with monkeypatch.context() as patch:
        patch.setattr(tape.Tape, "__init__", record)
        patch.setattr(tape, "_Trial", lambda original=tape._Trial: trials.append(1) or original())
        ours = fit(**options)
    assert len(trials) == recorded.count(False) < recorded.count(True)
    equal(ours, alone(monkeypatch, **options))


@op
def _doubled(dev, x):
    """2 x, by NumPy if there are many columns"""
    double = (lambda y: 2 * y) if x.shape[1] > MANY else lambda y: dev.affine(y, mul=2.0)
    return double(x), (double,)


@op
def _doubled_by_table(dev, x):
    """2 x, by a table that an operation makes once for each number of samples"""
    if x.shape not in TABLES:
        TABLES[x.shape] = dev.full(x.shape, 2.0)
    table = TABLES[x.shape]
    return dev.mul(x, table), (lambda dy: dev.mul(dy, table),)


MANY, TABLES = 10, {}


class Doubling(Layer):
    recordable = True  # which is not true for wide inputs

    def __call__(self, x):
        return _doubled(x)

    def forward(self, flow, context):
        return flow.with_(self(flow.x), flow.layout, flow.pending)


def test_a_kind_that_uses_numpy_is_not_recorded_at_once(monkeypatch, replays):  # noqa: F811
    """It runs op by op, and when it occurs again its trial fails."""
    outcomes = []

    def record(self, work, arena, known=(), original=tape.Tape.__init__):
        outcomes.append([bool(known), False])
        original(self, work, arena, known)
        outcomes[-1][1] = True

    layers = lambda: [Linear(6, 24, rng=0), ReLU(), Doubling(), Linear(24, 3, rng=1)]  # noqa: E731  each fit has its own
    options = {"dropout": RowDropout(0.7, dp_max=4), "epochs": 8}
    with monkeypatch.context() as patch:
        patch.setattr(tape.Tape, "__init__", record)
        ours = fit(layers=layers(), **options)
    assert outcomes.count([True, False]) >= 1 and outcomes.count([False, False]) >= 1, "widths of 12, and of 8 and 6"
    assert outcomes.count([True, True]) >= 1 and sum(replays.values()) > 5
    equal(ours, alone(monkeypatch, layers=layers(), **options))


class Remembering(Layer):
    recordable = True

    def forward(self, flow, context):
        return flow.with_(_doubled_by_table(flow.x), flow.layout, flow.pending)


def test_batches_of_another_size_run_op_by_op_first(monkeypatch):
    """So that layers may fill caches with what operations compute."""
    layers = lambda: [Linear(6, 24, rng=0), Remembering(), ReLU(), Linear(24, 3, rng=1)]  # noqa: E731
    TABLES.clear()
    ours = fit(layers=layers())
    assert {(13, 24), (2, 24)} <= TABLES.keys() and all((table == 2).all() for table in TABLES.values())
    equal(ours, alone(monkeypatch, layers=layers()))
