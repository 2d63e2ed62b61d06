"""Linear: a product with a weight, of which a plan may leave out neurons or tiles."""
from __future__ import annotations

import functools
import math

import numpy as np

from .. import ops
from ..device import Device
from ..plans import AxisPlan, BernoulliPlan, SamplePlan, TilePlan
from ..tensor import Tensor
from .activation import ReLU
from .base import Flow, Form, Layer, part_of, product_cost, samples_of
from .step import Site, Step


class Linear(Layer):
    """y = x wᵀ + b.   x (…, in) -> y (…, out)

    Under an `AxisPlan` only the kept neurons are computed, and y holds them alone; under a `TilePlan` the kept tiles of the
    weight; under a `BernoulliPlan` all, and random zeros are due. Names, shapes and positional arguments are
    PyTorch's.

    Parameters
    ----------
    in_features, out_features : int
        Widths of the input and the output.
    bias : bool, default=True
        Whether to add b.
    init : {"he", "glorot"}, default="he"
        Uniform initial weights of variance 2 / in, for ReLU (He et al. 2015, eq. 10), or 2 / (in + out), for tanh and
        sigmoid (Glorot & Bengio 2010, eq. 16); b starts at 0.
    keep : float, default=1.0
        The variance is multiplied by it: 1 / keep is how many times larger dropout makes the mean square of y's sums. Where a
        share 1 - p of the products is left and scaled by 1 / (1 - p), it is 1 - p (Hendrycks & Gimpel 2016, "Adjusting for
        dropout variance in batch normalization and weight initialization").
    rng : numpy.random.Generator or int, optional
        Where the initial weights come from; without, an estimator's `random_state` says it.
    device : str or Device, default="cpu"
        Where the parameters live.

    Raises
    ------
    ValueError
        If a width is not positive, `init` is unknown or `keep` not in (0, 1].
    """

    recordable = True

    def __init__(self, in_features: int, out_features: int, bias: bool = True, *, init: str = "he", keep: float = 1.0,
                 rng: np.random.Generator | int | None = None, device: str | Device = "cpu") -> None:
        if in_features < 1 or out_features < 1:
            raise ValueError(f"Linear: widths must be positive, got in_features={in_features}, out_features={out_features}")
        if init not in ("he", "glorot"):
            raise ValueError(f"Linear: init must be 'he' or 'glorot', got {init!r}")
        if not 0 < keep <= 1:
            raise ValueError(f"Linear: keep must be in (0, 1], got {keep!r}")
        variance = keep * (2 / in_features if init == "he" else 2 / (in_features + out_features))
        self._bound, self._shape = math.sqrt(3 * variance), (out_features, in_features)
        self.weight = Tensor(self.initial(self.generator(rng))["weight"], device, requires_grad=True)
        self.bias = Tensor(np.zeros(out_features), device, requires_grad=True) if bias else None

    def initial(self, rng):
        return {"weight": rng.uniform(-self._bound, self._bound, self._shape)}

    @property
    def out_features(self) -> int:
        return self.weight.shape[0]

    @property
    def in_features(self) -> int:
        return self.weight.shape[1]

    def sites(self):
        return Site(self, "output", "output", self.weight.shape), Site(self, "output", "tiles", self.weight.shape)

    def forward(self, flow: Flow, step: Step, relu: bool = False) -> Flow:
        """act(x wᵀ + b), act the identity or ReLU, as far as the step's plan keeps it.

        What a `RowPlan` keeps is scaled in the product's epilogue after ReLU; else its scale is due. Under a `TilePlan`, inputs
        that were dropped are put back first, as zeros.
        """
        flow = Flow(flow.dense()) if flow.channels_last else flow.settled() if flow.due else flow
        if flow.sampled is not None:
            return self._sampled(flow, step, relu)
        x, kept = flow.x, flow.kept
        if x.ndim < 1 or x.shape[-1] != (self.in_features if kept is None else kept.plan.count):
            raise ValueError(f"Linear: x {x.shape} does not match weight {self.weight.shape}"
                             f"{'' if kept is None else f' under {kept.plan}'}: its last axis must be "
                             f"{self.in_features if kept is None else kept.plan.count}")
        if x.ndim != 2:
            lead = x.shape[:-1]
            found = self.forward(Flow(x.reshape(math.prod(lead), x.shape[-1]), kept), step, relu)
            y, *others = found if found.sampled is None else Flow(found.dense())
            return Flow(y.reshape(*lead, y.shape[-1]), *others)
        step.look(self, Flow(x, kept), self.weight)
        plan = self._plan(step)
        if isinstance(plan, SamplePlan):
            return self._sampled(Flow(Flow(x, kept).dense()), step, relu)
        if isinstance(plan, TilePlan):
            return Flow(ops.linear_tiles(Flow(x, kept).dense(), self.weight, self.bias, plan=step.kept(self), relu=relu,
                                         blocks=step.ready.get(self.weight)))
        rows = step.kept(self) if isinstance(plan, AxisPlan) else None
        if rows is None and kept is None:
            y = ops.linear(x, self.weight, self.bias, relu=relu)
        else:
            y = ops.linear_rows(x, self.weight, self.bias, rows=rows, cols=kept, relu=relu, scale=None if relu else 1.0)
        due = isinstance(plan, BernoulliPlan) or (rows is not None and not relu and plan.scale != 1.0)
        return Flow(y, rows, (plan,) if due else ())

    def _sampled(self, flow: Flow, step: Step, relu: bool) -> Flow:
        """As `forward`, where each sample keeps its own: of what comes, of what leaves, or both."""
        step.look(self, flow, self.weight)
        plan = self._plan(step)
        if plan is not None and not isinstance(plan, SamplePlan):
            return self.forward(Flow(flow.dense()), step, relu)
        outer = step.kept(self)
        y = ops.linear_samples(flow.x, self.weight, self.bias, inner=flow.sampled, outer=outer, relu=relu)
        return Flow(y, sampled=outer)

    def _plan(self, step: Step):
        """The step's plan; TypeError or ValueError where this layer does not know it, or it is made for another one."""
        plan = step.plan(self)
        if plan is None:
            return None
        if not isinstance(plan, (AxisPlan, TilePlan, BernoulliPlan, SamplePlan)):
            raise TypeError(f"{self!r}: it does not know the plan {plan!r}; it takes an AxisPlan, TilePlan, BernoulliPlan or "
                            "SamplePlan")
        size = self.weight.shape if isinstance(plan, TilePlan) else self.out_features
        if (plan.shape if isinstance(plan, TilePlan) else plan.n) != size:
            raise ValueError(f"{self!r}: {plan} is not made for its weight {self.weight.shape}")
        return plan

    def absorb(self, following):
        return functools.partial(self.forward, relu=True) if type(following) is ReLU else None

    def cost(self, form, step):
        if not form.shape or form.shape[-1] not in (None, self.in_features):
            raise ValueError(f"{self!r}: it takes {self.in_features} features, and its input has {form.shape[-1:]}")
        plan, n = self._plan(step), samples_of(form)
        tiles, rows = isinstance(plan, TilePlan), plan if isinstance(plan, AxisPlan) else None
        inner = self.in_features if form.kept is None or tiles else form.kept.count
        outer = self.out_features if rows is None else rows.count
        size = plan.size if tiles else inner * outer * (plan.density if isinstance(plan, SamplePlan) else 1.0)
        return product_cost(n, inner, outer, size, form), Form((*form.shape[:-1], self.out_features), rows, True)

    def commutes(self, plan):
        return isinstance(plan, SamplePlan)

    def reads(self, step):
        plan = step.plan(self)
        return part_of(self.weight, plan, step) if plan else {}

    def __repr__(self) -> str:
        return f"Linear({self.in_features}, {self.out_features}{'' if self.bias is not None else ', bias=False'})"
