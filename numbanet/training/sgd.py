"""SGD: g += decay w;  v = momentum v + g;  w -= lr v        (Nesterov: w -= lr (g + momentum v))"""

from __future__ import annotations

from collections.abc import Iterable

from numbanet_kernels.layouts.packed import SGDUpdate

from ..plans import DevicePlan
from ..tensor import Tensor
from .lazy import LazyUpdates
from .optim import Optimizer, check_number, matrix


class SGD(Optimizer):
    """Stochastic gradient descent with momentum, as PyTorch defines it.

    If `step(wanted)` names the parts of weights that are read before the next step, the updates of the other parts are
    deferred. A step without a gradient is a linear map of (w, v), so several such steps of a block of a weight are combined
    into one, which is made before the block is read. The cost of an update is then proportional to the parts that two
    successive plans keep, not to the size of the weight. The weights are those of the dense update up to rounding.

    Parameters
    ----------
    parameters : iterable of Tensor
        The tensors to train, each with requires_grad=True.
    learning_rate : float, default=0.01
        Step size.
    momentum : float, default=0.0
        In [0, 1): factor of the previous velocity v (Polyak 1964).
    nesterov : bool, default=False
        If True, Nesterov's momentum is used: w -= lr (g + momentum v) (Nesterov 1983, in the form of Sutskever et al. 2013).
    weight_decay : float, default=0.0
        L2 penalty: weight_decay * w is added to the gradient.
    clip_norm : float, optional
        A number above 0. If the norm of all gradients as one vector is larger, the gradients are scaled down to this norm. By
        default, gradients are not clipped.

    Raises
    ------
    ValueError
        If a number is out of range, there are no parameters, or `nesterov` is True with momentum 0.
    """

    recordable = foretells = True

    def __init__(
        self,
        parameters: Iterable[Tensor],
        learning_rate: float = 0.01,
        momentum: float = 0.0,
        *,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        clip_norm: float | None = None,
    ) -> None:
        super().__init__(parameters, learning_rate, weight_decay, clip_norm)
        self.momentum = check_number("momentum", momentum, 0, 1)
        self.nesterov = bool(nesterov)
        if self.nesterov and not self.momentum:
            raise ValueError("nesterov needs a momentum above 0")
        self.lazy: dict[Tensor, LazyUpdates] = {}
        self.stepping: list[LazyUpdates] = []  # the objects that the current step changes
        self.packs = True  # whether updates pack the blocks that the next step reads; recorded steps cannot read them

    @property
    def foresees(self):
        return bool(self.lazy) or (self.proximal is None and any(p.device.lazy_pays(p.size) for p in self.parameters))

    @property
    def constants(self):
        return self.momentum, self.nesterov, self.weight_decay

    @property
    def arrays(self):
        return [*super().arrays, *(array for lazy in self.stepping for array in (lazy.lag, lazy.current))]

    def prepare(self, wanted=None):
        super().prepare(wanted)
        for p in self.parameters:
            if p.requires_grad and p not in self.resting:
                self._arrange(p, self.wanted.get(p))
            elif p in self.lazy:  # the parameter was frozen after the last step
                self.settle(p)
                del self.lazy[p]
        self.stepping = list(self.lazy.values())

    def launch(self, numbers=None):
        for parameter, lazy in self.lazy.items():
            if parameter.gradient is None:  # `settled` copies arrays, and copies are not recorded
                self.settle(parameter)
                lazy.settled()
                self.stepping.remove(lazy)
        self.packs = numbers is None
        return super().launch(numbers)

    def update(self, dev, due, numbers):
        updates, ready = [], {}
        for parameter, (w, v), g, packing in due:
            lazy, into = self.lazy.get(parameter), None
            if lazy and lazy.partly and self.packs:
                into = self.wanted[parameter].room()
            updates.append(SGDUpdate(w, v, g, packing, lazy and lazy.blocks, into))
            if into is not None:
                ready[parameter] = into[0]
        dev.sgd(updates, numbers, *self.constants)
        return ready

    def _arrange(self, parameter: Tensor, part: DevicePlan | None) -> None:
        """Tell the `LazyUpdates` of a parameter which part of it is read before the next step. If there is no `LazyUpdates` and
        deferring saves time, make one. If the shape of its blocks or its numbers have changed, settle and replace it.
        """
        dev, lazy = parameter.device, self.lazy.get(parameter)
        part = part if part is not None and dev.lazy_pays(parameter.size) else None
        region = None if part is None else part.plan.region(parameter.shape)
        block, numbers = None if region is None else region.block, (self.learning_rate, *self.constants)
        fits = lazy and lazy.dev is dev and block in (None, lazy.block)
        if lazy and not (fits and lazy.numbers == numbers):
            self.settle(parameter)
            lazy.renumber(numbers)
            if not fits:
                del self.lazy[parameter]
        if block is not None and not fits:
            shape = parameter.shape[0], parameter.size // max(parameter.shape[0], 1)
            self.lazy[parameter] = LazyUpdates(dev, shape, block, numbers)
        if parameter in self.lazy:
            self.lazy[parameter].want(part)

    def advance(self, trained=None):
        super().advance(trained)
        for lazy in self.stepping:
            lazy.stepped()
        self.stepping = []

    def settle(self, parameter=None):
        for i, p in enumerate(self.parameters):
            lazy = self.lazy.get(p) if parameter is None or parameter is p else None
            if lazy and lazy.count:
                p.device.sgd_settle(matrix(p, p.data), matrix(p, self.state[i][0]), lazy.blocks)
                lazy.settled()

    def resize(self, parameter, change):
        super().resize(parameter, change)
        self.lazy.pop(parameter, None)

    def reset(self):
        super().reset()
        self.lazy = {}

    def snapshot(self, copied=None, settle=True):
        saved = super().snapshot(copied, settle)
        lazy = {i: self.lazy[p].state() for i, p in enumerate(self.parameters) if p in self.lazy}
        return saved if settle or not lazy else {**saved, "lazy": lazy}

    def restore(self, saved):
        super().restore(saved)
        self.lazy, self.stepping = {}, []
        for i, state in saved.get("lazy", {}).items():
            lazy = LazyUpdates(self.parameters[i].device, state["shape"], state["block"], state["numbers"])
            self.lazy[self.parameters[i]] = lazy.restored(state)

    def __getstate__(self):
        return {**super().__getstate__(), "lazy": {}, "stepping": []}
