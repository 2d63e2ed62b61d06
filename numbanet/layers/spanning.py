"""`Spanning`: the layers of a `Sequential` are on several devices, and activations and gradients move between them.

    x_i = move(f_i(move(x_(i-1), device_i)), device_(i+1)) ,   dx_(i-1) = move(vjp_i(dx_i), device_(i-1))

CNNLab (Zhu et al. 2016, abstract) offloads layers to devices at run time; `numbanet.placement` chooses the devices.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence

from ..autograd import FREED
from ..device import Device, DeviceFailure
from ..tensor import Tensor
from .context import Context
from .flow import Flow


class Spanning:
    """The devices of a model's layers, and how far the current pass has come."""

    def __init__(self, devices: Sequence[Device]) -> None:
        self.devices = tuple(devices)
        # (first layer, the layer after the last one, output) of each stage; the output of the current one is None
        self._stages: list[tuple[int, int, weakref.ref[Tensor] | None]] = []

    def __reduce__(self) -> tuple:
        return Spanning, (self.devices,)

    def stage(self, i: int, end: int, act: Callable[[Flow, Context], Flow]) -> Callable[[Flow, Context], Flow]:
        """Return the function that applies the layers from i to `end` - 1 with `act`, on the device of layer i. The output of
        the last layer of the model is moved to the device of the pass."""
        dev, last = self.devices[i], end == len(self.devices)

        def run(flow: Flow, context: Context) -> Flow:
            if i == 0:
                self._stages.clear()
            self._stages.append((i, end, None))
            flow = act(flow.on(dev), context.on(dev))
            self._stages[-1] = i, end, weakref.ref(flow.x)
            return flow.on(context.device) if last else flow

        return run

    def failure(self, error: Exception) -> DeviceFailure:
        """Return an error that names the layer and the device that raised `error` in the current pass."""
        (i, end, output), way = self._stages[-1], "forward"
        if output is not None:
            way, done = "backward", [(i, end) for i, end, output in self._stages if _has_gradient(output)]
            i, end = done[0] if done else (i, end)
        which = f"layer {i}" if end == i + 1 else f"layers {i} to {end - 1}"
        return DeviceFailure(
            f"{which} failed on device {self.devices[i].name!r} in the {way} pass: {type(error).__name__}: {error}"
        )


def _has_gradient(output: weakref.ref[Tensor] | None) -> bool:
    """Return True if the backward pass has come to the op that made the output."""
    x = None if output is None else output()
    return x is None or x.node is FREED
