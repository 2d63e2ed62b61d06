"""`Linear`: a product with a weight, of which a plan may drop neurons or tiles."""

from __future__ import annotations

import functools
import math

import numpy as np

from .. import ops
from ..arguments import check_counts
from ..device import Device
from ..initial import uniform
from ..plans import AxisPlan, BernoulliPlan, DeviceAxis, DeviceSamples, DeviceTiles, SamplePlan, Site, TilePlan
from ..tensor import Tensor
from .activation import ReLU
from .base import Layer
from .context import Context
from .flow import DENSE, ActivationSpec, Columns, Flow, PerSample, product_cost

INITS = {  # the variance of the initial weights, as a function of the numbers of inputs and outputs
    "he": lambda n_in, n_out: 2 / n_in,
    "glorot": lambda n_in, n_out: 2 / (n_in + n_out),
    "fan_in": lambda n_in, n_out: 1 / (3 * n_in),
}


class Linear(Layer):
    """y = x wᵀ + b.   x (…, in) -> y (…, out)

    Under an `AxisPlan` only the kept neurons are computed, and y holds only the kept neurons. Under a `TilePlan` only the kept
    tiles of the weight are multiplied. Under a `BernoulliPlan` everything is computed, and a random mask is pending
    (`Flow.pending`). Names, shapes and positional arguments are PyTorch's.

    Parameters
    ----------
    in_features, out_features : int
        Widths of the input and the output.
    bias : bool, default=True
        Whether to add b.
    init : {"he", "glorot", "fan_in"}, default="he"
        The variance of the initial weights, which are uniformly distributed: 2 / in for "he" (He et al. 2015, eq. 10),
        2 / (in + out) for "glorot" (Glorot & Bengio 2010, eq. 16), 1 / (3 in) for "fan_in", as in PyTorch's `nn.Linear`.
    bias_init : {"zeros", "uniform"}, default="zeros"
        Initial values of b: 0, or uniformly distributed between -1 / sqrt(in) and 1 / sqrt(in) as in PyTorch, so that the
        neurons' ReLUs change slope at different inputs.
    variance_factor : float, default=1.0
        Factor of the variance of the initial weights. It compensates for dropout of the inputs, which multiplies the mean
        square of y by 1 / variance_factor. If a share 1 - p of the products is kept and multiplied by 1 / (1 - p), the factor
        is 1 - p (Hendrycks & Gimpel 2016, "Adjusting for dropout variance in batch normalization and weight initialization").
    rng : numpy.random.Generator or int, optional
        Source of the initial weights; by default an estimator's `random_state` determines them.
    device : str or Device, default="cpu"
        Device of the parameters.

    Raises
    ------
    ValueError
        If a width is not a positive integer, `init` or `bias_init` is unknown, or `variance_factor` not in (0, 1].
    """

    recordable = True

    def __init__(
        self,
        in_features: int,
        out_features: int,
        bias: bool = True,
        *,
        init: str = "he",
        bias_init: str = "zeros",
        variance_factor: float = 1.0,
        rng: np.random.Generator | int | None = None,
        device: str | Device = "cpu",
    ) -> None:
        in_features, out_features = check_counts("Linear", in_features=in_features, out_features=out_features)
        if init not in INITS:
            raise ValueError(f"Linear: init must be one of {', '.join(map(repr, INITS))}; got {init!r}")
        if bias_init not in ("zeros", "uniform"):
            raise ValueError(f"Linear: bias_init must be 'zeros' or 'uniform', got {bias_init!r}")
        if not 0 < variance_factor <= 1:
            raise ValueError(f"Linear: variance_factor must be in (0, 1], got {variance_factor!r}")
        variance = variance_factor * INITS[init](in_features, out_features)
        self._bound, self._shape = math.sqrt(3 * variance), (out_features, in_features)
        self._bias_bound = 1 / math.sqrt(in_features) if bias and bias_init == "uniform" else 0.0
        values = self.initial(self.generator(rng))
        self.weight = Tensor(values["weight"], device, requires_grad=True)
        self.bias = Tensor(values.get("bias", np.zeros(out_features)), device, requires_grad=True) if bias else None

    def initial(self, rng):
        values = {"weight": uniform(rng, self._bound, self._shape)}
        if self._bias_bound:
            values["bias"] = uniform(rng, self._bias_bound, self._shape[0])
        return values

    @property
    def out_features(self) -> int:
        """O, the number of outputs."""
        return self.weight.shape[0]

    @property
    def in_features(self) -> int:
        """I, the number of inputs."""
        return self.weight.shape[1]

    def sites(self):
        shape = self.weight.shape
        return (
            Site("output", "output", shape, (AxisPlan, TilePlan, BernoulliPlan, SamplePlan), chosen=True),
            Site("tiles", "tiles", shape, (TilePlan,)),
        )

    def forward(self, flow: Flow, context: Context, relu: bool = False) -> Flow:
        """Return act(x wᵀ + b), where act is ReLU if `relu`, else the identity. A plan that drops rows or tiles, or outputs of
        each sample, has only the kept part computed.

        If `relu`, the scale of an `AxisPlan` is applied in the product's epilogue; otherwise it stays pending. Under a
        `TilePlan` the input is first expanded, with zeros for dropped entries.
        """
        flow = flow.features()
        width = self.in_features if flow.indices is None else flow.indices.plan.count
        if not isinstance(flow.layout, PerSample):
            if flow.x.ndim < 1 or flow.x.shape[-1] != width:
                under = "" if flow.indices is None else f" under {flow.indices.plan}"
                raise ValueError(
                    f"Linear: x {flow.x.shape} does not match weight {self.weight.shape}{under}: its last axis must be {width}"
                )
            if flow.x.ndim != 2:
                lead = flow.x.shape[:-1]
                y = self.forward(flow._replace(x=flow.x.reshape(math.prod(lead), width)), context, relu)
                y = y if y.layout.plan is None else y.with_(y.dense())
                return y._replace(x=y.x.reshape(*lead, y.x.shape[-1]))
        plan = context.plans.at(self, "tiles") or context.plans.at(self, "output", flow)
        if isinstance(plan, DeviceTiles):
            return flow.with_(
                ops.linear_tiles(
                    flow.dense(), self.weight, self.bias, plan=plan, relu=relu, blocks=context.packed.get(self.weight)
                )
            )
        inner = flow.layout.samples if isinstance(flow.layout, PerSample) else None
        if isinstance(plan, DeviceSamples) or (inner is not None and plan is None):
            x = flow.x if inner is not None else flow.dense()
            y = ops.linear_samples(x, self.weight, self.bias, inner=inner, outer=plan, relu=relu)
            return flow.with_(y, DENSE if plan is None else PerSample(plan))
        flow = flow if inner is None else flow.with_(flow.dense())
        rows = plan if isinstance(plan, DeviceAxis) else None
        if rows is None and flow.indices is None:
            y = ops.linear(flow.x, self.weight, self.bias, relu=relu, few=context.few)
        else:
            y = ops.linear_rows(
                flow.x, self.weight, self.bias, rows=rows, cols=flow.indices, relu=relu, scale=None if relu else 1.0
            )
        pending = () if plan is None or (rows is not None and (relu or plan.plan.scale == 1.0)) else (plan.pending,)
        return flow.with_(y, DENSE if rows is None else Columns(rows), pending)

    def fuse_with(self, following):
        return functools.partial(self.forward, relu=True) if type(following) is ReLU else None

    def cost(self, spec, plans):
        if not spec.shape or spec.shape[-1] not in (None, self.in_features):
            flat = math.prod(size or 0 for size in spec.shape[1:]) == self.in_features
            hint = f" of {spec.shape[1:]}: put Flatten() before it" if flat else ""
            raise ValueError(f"{self!r}: it takes {self.in_features} features, and its input has {spec.shape[-1:]}{hint}")
        plan = plans.of(self, "tiles") or plans.of(self)
        tiles, rows = isinstance(plan, TilePlan), plan if isinstance(plan, AxisPlan) else None
        inner = self.in_features if spec.plan is None or tiles else spec.plan.count
        outer = self.out_features if rows is None else rows.count
        size = plan.size if tiles else inner * outer * (plan.density if isinstance(plan, SamplePlan) else 1.0)
        return (
            product_cost(spec.samples, inner, outer, size, spec),
            ActivationSpec((*spec.shape[:-1], self.out_features), rows, True),
        )

    def commutes(self, plan):
        return isinstance(plan, SamplePlan)

    def reads(self, plans, symbols=None):
        return plans.region(self, self.weight, "tiles" if plans.of(self, "tiles") else "output")

    def config(self):
        return {"in_features": self.in_features, "out_features": self.out_features, "bias": self.bias is not None}

    @classmethod
    def shapes(cls, config):
        return (("weight", (config["out_features"], config["in_features"])),)

    def __repr__(self) -> str:
        return f"Linear({self.in_features}, {self.out_features}{'' if self.bias is not None else ', bias=False'})"
