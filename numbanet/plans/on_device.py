"""DevicePlan: a plan on a device. It makes and owns the arrays that kernels and gradients read, once per plan."""

from __future__ import annotations

import functools
import itertools
from typing import Any, cast

import numpy as np

from numbanet_kernels.layouts.packed import Packing
from numbanet_kernels.layouts.rows import RowLists
from numbanet_kernels.layouts.samples import SampleLists
from numbanet_kernels.layouts.tiles import TileLists
from numbanet_kernels.layouts.windows import Blocks, Positions

from ..device import Device
from .base import AxisPlan, Plan
from .rows import PositionPlan, RowPlan, TimePlan, repeat_indices
from .samples import BernoulliPlan, SamplePlan
from .tiles import BlockPlan, TilePlan
from .windows import UnitWindow

APART = 64  # numbers between the starts of two lists: 256 bytes, the alignment of device arrays


class DevicePlan:
    """A plan on a device. Its lists are in the buffer that is passed, or in one that it allocates; plans of one kind have lists
    of equal shapes.
    """

    def __init__(self, plan: Plan, dev: Device, buffer: Any = None) -> None:
        self.plan, self.device, self._given = plan, dev, buffer is not None
        if buffer is not None:
            self.buffer = buffer

    def copied_to(self, buffer: Any) -> DevicePlan:
        """The same plan, but reading its lists from another buffer; the caller copies the lists to it."""
        other = type(self)(self.plan, self.device, buffer)
        vars(other)["_host"] = self._host
        return other

    @property
    def density(self) -> float:
        """The kept share of the plan, which `profile` prints."""
        return self.plan.density

    @functools.cached_property
    def _host(self) -> tuple[np.ndarray, ...]:
        return tuple(np.asarray(array, np.int32) for array in self.plan.lists())

    @functools.cached_property
    def buffer(self) -> Any:
        """All lists in one int32 device array, so that one copy uploads them."""
        together, start = np.zeros(sum(array.size + -array.size % APART for array in self._host), np.int32), 0
        for array in self._host:
            together[start : start + array.size] = array.reshape(-1)
            start += array.size + -array.size % APART
        return self.device.upload(together)

    @functools.cached_property
    def lists(self) -> tuple:
        """The lists, as views of `buffer`."""
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
        """A bool device array (block rows, block columns): True for the blocks in the plan's `Region`."""
        region = self.plan.region(self.plan.shape)
        assert region is not None, f"{self.plan} has no region"
        return self.device.upload(region.wanted)

    def room(self) -> tuple | None:
        """A buffer for the blocks of a weight that an update packs for the next step; None: nothing is packed."""
        return None

    @property
    def pending(self) -> Any:
        """The factors that layers apply later (`Flow.pending`): the plan's scale, or random bits."""
        return self.plan

    def __repr__(self) -> str:
        return f"{self.plan!r} on {self.device.name}"


class DeviceBits(DevicePlan):
    """The key of an activation's random bits."""

    plan: BernoulliPlan

    @property
    def key(self) -> Any:
        """The key of the random bits, a device array."""
        return self.lists[0]

    @property
    def pending(self):
        return self


class DeviceAxis(DevicePlan):
    """The kept indices of an axis."""

    plan: AxisPlan

    @functools.cached_property
    def lists(self) -> RowLists:
        return RowLists(*self._parts())

    @functools.cached_property
    def index(self) -> Any:
        """The argument of planned products; None for all indices."""
        return None if self.plan.count == self.plan.n else self.plan.index(self.lists.indices)

    @property
    def inverse(self) -> Any:
        """(n,) int32: the position of each index among the kept ones, -1 if dropped."""
        return self.lists.inverse

    @property
    def indices(self) -> Any:
        """(count,) int32: the kept indices."""
        return self.lists.indices

    @functools.cached_property
    def columns(self) -> tuple[Any, Any]:
        """(1, count) and (1, n): the indices and their inverse in the form of a `Packing` with one class of columns."""
        return self.device.reshape(self.indices, (1, self.plan.count)), self.device.reshape(self.inverse, (1, self.plan.n))

    def repeated(self, times: int) -> DeviceAxis:
        """The axis that has `times` consecutive indices for each index of this one, such as the pixels of a channel."""
        dev, longer = self.device, repeat_indices(self.plan, times)
        inverse, indices = (dev.repeat_indices(array, times) for array in (self.inverse, self.indices))
        return ListedAxis(longer, dev, RowLists(inverse, _one_class(longer.n, dev), indices))


class ListedAxis(DeviceAxis):
    """The kept indices of an axis, with lists that were made from those of another axis."""

    def __init__(self, plan: AxisPlan, dev: Device, lists: RowLists) -> None:
        super().__init__(plan, dev)
        self._lists = lists

    @property
    def lists(self) -> RowLists:
        return self._lists


class DeviceUnits(DeviceAxis):
    """The kept units of a recurrent layer, and the same units in each of its gates."""

    plan: UnitWindow

    @functools.cached_property
    def lists(self) -> RowLists:
        return RowLists(*self._parts()[: len(RowLists._fields)])

    @functools.cached_property
    def gates(self) -> DeviceAxis:
        """The axis of the gates."""
        return ListedAxis(self.plan.of_gates, self.device, RowLists(*self._parts()[len(RowLists._fields) :]))


class DevicePositions(DeviceAxis):
    """The kept rows of a convolution's im2col matrix."""

    plan: PositionPlan

    @functools.cached_property
    def indices(self) -> Any:
        """The argument of convolutions: the kept rows; if the lists are in a given buffer, lists that are long enough for any
        plan of the kind.
        """
        if self._given:
            return Positions(self._parts()[0], self.plan.together)
        return self.device.upload(np.array(self.plan.chosen))


@functools.lru_cache(maxsize=64)
def _one_class(n: int, dev: Device) -> Any:
    """The row classes of an axis whose rows all keep the same columns."""
    return dev.upload(np.zeros(n, np.int32))


def packing(rows: DeviceAxis, cols: DeviceAxis) -> Packing:
    """The `Packing` that locates the gradient of w[kept rows, kept columns] in that of w."""
    return Packing(rows.inverse, rows.lists.classes, *cols.columns)


class DeviceTimes(DevicePlan):
    """The kept indices of an axis, different at each time step."""

    plan: TimePlan

    @property
    def units(self) -> Any:
        """(T, count) int32: the kept indices of each time step."""
        return self.lists[0]


class DeviceTiles(DevicePlan):
    """The kept tiles of a weight."""

    plan: TilePlan

    @functools.cached_property
    def packing(self) -> Packing:
        """The `Packing` of a gradient of the kept tiles."""
        return Packing(*self.lists[: len(Packing._fields)])

    @functools.cached_property
    def tiles(self) -> TileLists:
        """The lists for kernels."""
        return TileLists(*self.lists[len(Packing._fields) :])

    def room(self):
        return self.device.tile_room(self.plan.pattern)


class DeviceBlocks(DevicePlan):
    """The kept blocks of a convolution's im2col matrix."""

    plan: BlockPlan

    @functools.cached_property
    def blocks(self) -> Blocks:
        """The argument of kernels: the kept blocks; if the lists are in a given buffer, lists that are long enough for any plan
        of the kind.
        """
        kept = self.lists[0] if self._given else self.device.upload(np.array(self.plan.chosen))
        return Blocks(kept, self.plan.height, self.plan.width, self.plan.together)


class DeviceSamples(DevicePlan):
    """The entries of an activation that each sample keeps."""

    plan: SamplePlan

    @functools.cached_property
    def lists(self) -> SampleLists:
        lists = self.plan.lists()
        return lists._replace(bits=self.device.upload(lists.bits), starts=self.device.upload(lists.starts.astype(np.int32)))


KINDS = {
    BernoulliPlan: DeviceBits,
    SamplePlan: DeviceSamples,
    PositionPlan: DevicePositions,
    UnitWindow: DeviceUnits,
    AxisPlan: DeviceAxis,
    TimePlan: DeviceTimes,
    TilePlan: DeviceTiles,
    BlockPlan: DeviceBlocks,
}


def upload_plan(plan: Plan, dev: Device, buffer: Any = None) -> DevicePlan:
    """A new DevicePlan for the plan, with its lists in `buffer` if it is given; it is not cached."""
    kind = next((form for kind, form in KINDS.items() if isinstance(plan, kind)), DevicePlan)
    return kind(plan, dev, buffer)


_held = functools.lru_cache(maxsize=1024)(upload_plan)


def on_device(plan: Plan, dev: Device) -> DevicePlan:
    """The DevicePlan of the plan; cached if the plan is cacheable."""
    return (_held if plan.cacheable else upload_plan)(plan, dev)


def on(name: str, plan: Plan | DevicePlan, dev: Device, kind: type[DevicePlan], shape: tuple[int, ...] | None = None) -> Any:
    """The DevicePlan for the op `name`. TypeError unless the plan is of class `kind`; ValueError unless it has the shape, if
    one is given.
    """
    given = plan if isinstance(plan, DevicePlan) else on_device(plan, dev) if isinstance(plan, Plan) else None
    if not isinstance(given, kind):
        known = {
            DeviceAxis: "an axis",
            DeviceTimes: "time steps",
            DeviceTiles: "tiles",
            DeviceBlocks: "blocks",
            DeviceSamples: "samples",
        }[kind]
        raise TypeError(f"{name}: it does not know the plan {plan!r}; it takes one of {known}")
    if given.device is not dev:
        raise ValueError(f"{name}: the plan is on {given.device.name}, the arrays on {dev.name}")
    if shape is not None and given.plan.shape != shape:
        raise ValueError(f"{name}: {given.plan} is of shape {given.plan.shape}, not {shape}")
    return given


def full_axis(n: int, dev: Device) -> DeviceAxis:
    """The DevicePlan of an axis of which every index is kept; cached."""
    return cast(DeviceAxis, on_device(RowPlan(n, 1, 0), dev))
