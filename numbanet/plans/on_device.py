"""DevicePlan: a plan on a device. The arrays that kernels and gradients read of a plan are made here, once, and owned here."""

from __future__ import annotations

import functools
import itertools
from typing import Any, cast

import numpy as np

from numbanet_kernels.layouts.packed import Packing
from numbanet_kernels.layouts.rows import RowLists
from numbanet_kernels.layouts.samples import SampleLists
from numbanet_kernels.layouts.tiles import TileLists, tile_packing
from numbanet_kernels.layouts.windows import Blocks, Positions

from ..device import Device
from .base import AxisPlan, Plan
from .rows import PositionPlan, RowPlan, TimePlan, repeat_indices
from .samples import BernoulliPlan, SamplePlan
from .tiles import BlockPlan, TilePlan

APART = 64  # numbers between the starts of two lists: 256 bytes, as a device aligns its own arrays


class DevicePlan:
    """A plan on a device; `place` is where its lists lie, if not in an array of its own.

    All plans of a kind fit into the same place, so that recorded launches find what is kept now (`training.recorder`).
    """

    def __init__(self, plan: Plan, dev: Device, place: Any = None, host: tuple[np.ndarray, ...] | None = None) -> None:
        self.plan, self.device, self._place = plan, dev, place
        if host is not None:
            self._host = host

    def at(self, place: Any) -> DevicePlan:
        """The same plan, its lists, which are worked out once, in a place: whoever has one copies them there."""
        return type(self)(self.plan, self.device, place, self._host)

    @property
    def density(self) -> float:
        """The kept share, for `profile`."""
        return self.plan.density

    @functools.cached_property
    def _host(self) -> tuple[np.ndarray, ...]:
        return tuple(np.asarray(array, np.int32) for array in self.plan.lists())

    @functools.cached_property
    def buffer(self) -> Any:
        """All lists in one int32 array of the device, so that one copy moves them."""
        if self._place is not None:
            return self._place
        together, start = np.zeros(sum(array.size + -array.size % APART for array in self._host), np.int32), 0
        for array in self._host:
            together[start : start + array.size] = array.reshape(-1)
            start += array.size + -array.size % APART
        return self.device.upload(together)

    @functools.cached_property
    def lists(self) -> tuple:
        """The lists, parts of `buffer`."""
        return self._parts()

    def _parts(self) -> tuple:
        dev, sizes = self.device, [array.size + -array.size % APART for array in self._host]
        starts = itertools.accumulate(sizes, initial=0)
        return tuple(
            dev.reshape(dev.part(self.buffer, start, start + array.size), array.shape)
            if array.size
            else dev.empty(array.shape, np.int32)
            for array, start in zip(self._host, starts)
        )

    @functools.cached_property
    def wanted(self) -> Any:
        """(block rows, block columns) bool array of the device: the blocks of the plan's `Region`."""
        region = self.plan.region(self.plan.shape)
        assert region is not None, f"{self.plan} has no region"
        return self.device.upload(region.wanted)

    def room(self) -> tuple | None:
        """Where an update may write, on its way, what the next step reads of the weight packed; None: nothing is packed."""
        return None

    @property
    def pending(self) -> Any:
        """What is left to be multiplied in by whoever keeps what the plan keeps: its scale, or bits."""
        return self.plan

    def __repr__(self) -> str:
        return f"{self.plan!r} on {self.device.name}"


class DeviceBits(DevicePlan):
    """Random bits of an activation."""

    plan: BernoulliPlan

    @property
    def key(self) -> Any:
        """A number, or an array of the device where it lies in a place that was given."""
        return self.plan.key if self._place is None else self.lists[0]

    @property
    def pending(self):
        return self


class DeviceAxis(DevicePlan):
    """Kept indices of an axis."""

    plan: AxisPlan

    @functools.cached_property
    def lists(self) -> RowLists:
        return RowLists(*self._parts())

    @functools.cached_property
    def index(self) -> Any:
        """What planned products take: None for all."""
        return None if self.plan.count == self.plan.n else self.plan.index(self.lists.indices)

    @property
    def inverse(self) -> Any:
        """(n,) int32: place of each index among the kept ones, -1 where dropped."""
        return self.lists.inverse

    @property
    def indices(self) -> Any:
        """(count,) int32: the kept indices."""
        return self.lists.indices

    @functools.cached_property
    def alone(self) -> Any:
        """The kept indices, where nothing else of the lists is asked for."""
        return self.device.upload(np.array(self.plan.indices(), np.int32)) if self._place is None else self.lists.indices

    @functools.cached_property
    def columns(self) -> tuple[Any, Any]:
        """(1, count) and (1, n): the indices and the places as a `Packing` has them of one class of columns."""
        return self.device.reshape(self.indices, (1, self.plan.count)), self.device.reshape(self.inverse, (1, self.plan.n))

    def repeated(self, times: int) -> DeviceAxis:
        """Of the longer axis that has, for each index, so many in a row, such as the pixels of a channel."""
        plan = repeat_indices(self.plan, times)
        if self._place is None:
            return cast(DeviceAxis, on_device(plan, self.device))
        longer, (inverse, _, indices) = DeviceAxis(plan, self.device, self._place), self.lists
        repeat, classes = self.device.repeat_indices, _one_class(plan.n, self.device)
        longer.lists = RowLists(repeat(inverse, times), classes, repeat(indices, times))
        return longer


class DevicePositions(DeviceAxis):
    """Kept rows of a convolution's input matrix."""

    plan: PositionPlan

    @functools.cached_property
    def alone(self) -> Any:
        """The list as convolutions take it: as long as it is, or, in a place that was given, as long as any may be."""
        return super().alone if self._place is None else Positions(self._parts()[0], self.plan.together)


@functools.lru_cache(maxsize=64)
def _one_class(n: int, dev: Device) -> Any:
    """The classes of an axis that has one."""
    return dev.upload(np.zeros(n, np.int32))


def packing(rows: DeviceAxis, cols: DeviceAxis) -> Packing:
    """How the gradient of w[kept rows, kept columns] lies in that of w."""
    return Packing(rows.inverse, rows.lists.classes, *cols.columns)


class DeviceTimes(DevicePlan):
    """Kept indices of an axis, others at each time step."""

    plan: TimePlan

    @property
    def units(self) -> Any:
        """(T, count) int32: by time step, the kept indices."""
        return self.lists[0]


class DeviceTiles(DevicePlan):
    """Kept tiles of a weight."""

    plan: TilePlan

    @functools.cached_property
    def packing(self) -> Packing:
        """How a gradient of the kept tiles is packed."""
        if self._place is None:
            return Packing(*map(self.device.upload, tile_packing(self.plan.pattern)))
        return Packing(*self.lists[: len(Packing._fields)])

    @functools.cached_property
    def tiles(self) -> TileLists | None:
        """What kernels walk, where it lies in a place that was given; None: they have lists of their own for the pattern."""
        return None if self._place is None else TileLists(*self.lists[len(Packing._fields) :])

    def room(self):
        return self.device.tile_room(self.plan.pattern)


class DeviceBlocks(DevicePlan):
    """Kept blocks of a convolution's input matrix."""

    plan: BlockPlan

    @functools.cached_property
    def blocks(self) -> Blocks:
        """The kept blocks as kernels take them: as many as there are, or, in a place that was given, as any plan may have."""
        kept = self.lists[0] if self._place is not None else self.device.upload(np.array(self.plan.chosen))
        return Blocks(kept, self.plan.height, self.plan.width)


class DeviceSamples(DevicePlan):
    """What each sample keeps of an activation."""

    plan: SamplePlan

    @functools.cached_property
    def lists(self) -> SampleLists:
        found = self.plan.lists()
        return found._replace(bits=self.device.upload(found.bits), starts=self.device.upload(found.starts.astype(np.int32)))


KINDS = {
    BernoulliPlan: DeviceBits,
    SamplePlan: DeviceSamples,
    PositionPlan: DevicePositions,
    AxisPlan: DeviceAxis,
    TimePlan: DeviceTimes,
    TilePlan: DeviceTiles,
    BlockPlan: DeviceBlocks,
}


def upload_plan(plan: Plan, dev: Device) -> DevicePlan:
    """The plan on a device."""
    kind = next((kept for kind, kept in KINDS.items() if isinstance(plan, kind)), DevicePlan)
    return kind(plan, dev)


_held = functools.lru_cache(maxsize=1024)(upload_plan)


def on_device(plan: Plan, dev: Device) -> DevicePlan:
    """The plan on a device; made once, where it may come again."""
    return (_held if plan.cacheable else upload_plan)(plan, dev)


def on(name: str, plan: Plan | DevicePlan, dev: Device, kind: type[DevicePlan], shape: tuple[int, ...] | None = None) -> Any:
    """The plan on the device, for the operation of that name, which takes plans of one kind, and of one shape where given."""
    found = plan if isinstance(plan, DevicePlan) else on_device(plan, dev) if isinstance(plan, Plan) else None
    if not isinstance(found, kind):
        known = {
            DeviceAxis: "an axis",
            DeviceTimes: "time steps",
            DeviceTiles: "tiles",
            DeviceBlocks: "blocks",
            DeviceSamples: "samples",
        }[kind]
        raise TypeError(f"{name}: it does not know the plan {plan!r}; it takes one of {known}")
    if found.device is not dev:
        raise ValueError(f"{name}: the plan is on {found.device.name}, the arrays on {dev.name}")
    if shape is not None and found.plan.shape != shape:
        raise ValueError(f"{name}: {found.plan} is of shape {found.plan.shape}, not {shape}")
    return found


def full_axis(n: int, dev: Device) -> DeviceAxis:
    """An axis of which everything is kept."""
    return cast(DeviceAxis, on_device(RowPlan(n, 1, 0), dev))
