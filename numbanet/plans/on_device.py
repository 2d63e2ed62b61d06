"""DevicePlan: a plan on a device. It makes and owns the arrays that kernels and gradients read, once per plan."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable
from typing import Any, cast

import numpy as np

from numbanet_kernels.layouts.packed import Packing
from numbanet_kernels.layouts.rows import RowLists
from numbanet_kernels.layouts.samples import SampleLists
from numbanet_kernels.layouts.tiles import TileLists
from numbanet_kernels.layouts.windows import Blocks, Positions

from ..device import Device
from .base import AxisPlan, Plan
from .positions import PositionPlan, PositionTilePlan
from .rows import ChosenPlan, RowPlan, TimePlan, repeat_indices
from .samples import BernoulliPlan, ChosenSamples, SamplePlan
from .tiles import BlockPlan, ChannelBlockPlan, TilePlan
from .windows import UnitWindow

APART = 64  # int32 numbers between the starts of two lists: 256 bytes, which is the alignment of device arrays


def write_lists(lists: Iterable[np.ndarray], out: np.ndarray) -> None:
    """Write the lists of a plan to `out`, each at a multiple of APART numbers."""
    start = 0
    for array in lists:
        out[start : start + array.size] = array.reshape(-1)
        start += array.size + -array.size % APART


class DevicePlan:
    """A plan on a device. Its lists are in a given or a new buffer; lists of plans of one kind have equal shapes."""

    def __init__(self, plan: Plan, dev: Device, buffer: Any = None) -> None:
        self.plan, self.device, self._given = plan, dev, buffer is not None
        if buffer is not None:
            self.buffer = buffer

    def copied_to(self, buffer: Any) -> DevicePlan:
        """Return the same plan with its lists in another buffer; the caller copies the lists to it."""
        other = type(self)(self.plan, self.device, buffer)
        vars(other)["_host"] = self._host
        return other

    @property
    def density(self) -> float:
        """The share of elements that the plan keeps; `profile` prints it."""
        return self.plan.density

    def chosen(self) -> Plan:
        """The plan whose lists an operation has written to the buffer of this one."""
        raise TypeError(f"{self} is not chosen on the device")

    @functools.cached_property
    def _host(self) -> tuple[np.ndarray, ...]:
        return tuple(np.asarray(array, np.int32) for array in self.plan.lists())

    @functools.cached_property
    def buffer(self) -> Any:
        """All lists in one int32 device array, so that one copy uploads them."""
        together = np.zeros(sum(array.size + -array.size % APART for array in self._host), np.int32)
        write_lists(self._host, together)
        return self.device.upload(together)

    @functools.cached_property
    def lists(self) -> tuple:
        """The index arrays of the plan, as views of `buffer`."""
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
        """Return a buffer for the blocks of a weight that an update packs for the next step; None if nothing is packed."""
        return None

    @property
    def pending(self) -> Any:
        """The factors that layers multiply in later (`Flow.pending`): the plan's scale, or a random mask."""
        return self.plan

    def __repr__(self) -> str:
        return f"{self.plan!r} on {self.device.name}"


class DeviceBits(DevicePlan):
    """A random mask on a device: the key from which kernels compute its random bits."""

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
        """The kept indices, as the argument of planned products; None if all indices are kept."""
        return None if self.plan.count == self.plan.n else self.plan.index(self.lists.indices)

    @property
    def inverse(self) -> Any:
        """(n,) int32: for each index of the axis, its position among the kept ones, or -1 if it is dropped."""
        return self.lists.inverse

    @property
    def indices(self) -> Any:
        """(count,) int32: the kept indices."""
        return self.lists.indices

    @functools.cached_property
    def columns(self) -> tuple[Any, Any]:
        """Return the indices (1, count) and their inverse (1, n) as in a `Packing` whose rows keep the same columns."""
        return self.device.reshape(self.indices, (1, self.plan.count)), self.device.reshape(self.inverse, (1, self.plan.n))

    def chosen(self):
        read = functools.partial(self.device.download, self.indices)
        return ChosenPlan(self.plan.n, self.plan.count, read, self.plan.scale)

    def repeated(self, times: int) -> DeviceAxis:
        """Return the axis that has `times` consecutive indices for each index of this one, such as the pixels of a channel."""
        dev, longer = self.device, repeat_indices(self.plan, times)
        inverse, indices = (dev.repeat_indices(array, times) for array in (self.inverse, self.indices))
        return ListedAxis(longer, dev, RowLists(inverse, _one_class(longer.n, dev), indices))


class ListedAxis(DeviceAxis):
    """The kept indices of an axis; the lists were made from those of another axis."""

    def __init__(self, plan: AxisPlan, dev: Device, lists: RowLists) -> None:
        super().__init__(plan, dev)
        self._lists = lists

    @property
    def lists(self) -> RowLists:
        return self._lists


def chosen_axis(bits: Any, n: int, count: int, dev: Device) -> ListedAxis:
    """The axis of n indices that keeps those whose bits are set in the device array `bits` (1, words), which are `count`."""
    inverse, indices = dev.bit_lists(bits, n, count)
    plan = ChosenPlan(n, count, functools.partial(dev.download, indices))
    return ListedAxis(plan, dev, RowLists(inverse, _one_class(n, dev), indices))


class DeviceUnits(DeviceAxis):
    """The kept units of a recurrent layer, and the same units in each of its gates."""

    plan: UnitWindow

    @functools.cached_property
    def lists(self) -> RowLists:
        return RowLists(*self._parts()[: len(RowLists._fields)])

    @functools.cached_property
    def gates(self) -> DeviceAxis:
        """The kept indices of the axis that holds the units of all gates."""
        return ListedAxis(self.plan.of_gates, self.device, RowLists(*self._parts()[len(RowLists._fields) :]))


class DevicePositions(DeviceAxis):
    """The kept rows of a convolution's im2col matrix."""

    plan: PositionPlan

    @functools.cached_property
    def indices(self) -> Any:
        """The kept rows, as the argument of convolutions; in a given buffer, long enough for any plan of the kind."""
        if self._given:
            return Positions(self._parts()[0], self.plan.together, share=self.plan.share)
        return Positions(self.device.upload(np.array(self.plan.chosen)), share=self.plan.share)


class DevicePositionTiles(DevicePositions):
    """The kept tiles of a convolution's output positions."""

    plan: PositionTilePlan

    @functools.cached_property
    def indices(self) -> Any:
        own = self.plan.chosen, self.plan.tiles
        rows, tiles = self._parts() if self._given else [self.device.upload(np.array(indices)) for indices in own]
        return Positions(rows, self.plan.together, tiles, self.plan.side, self.plan.share)


@functools.lru_cache(maxsize=64)
def _one_class(n: int, dev: Device) -> Any:
    """Return the row classes of a `Packing` for an axis whose rows all keep the same columns."""
    return dev.upload(np.zeros(n, np.int32))


def packing(rows: DeviceAxis, cols: DeviceAxis) -> Packing:
    """Return the `Packing` that says where in a weight's gradient the gradient of w[kept rows, kept columns] belongs."""
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
        """The lists of the kept tiles, as the argument of kernels."""
        return TileLists(*self.lists[len(Packing._fields) :])

    def room(self):
        return self.device.tile_room(self.plan.pattern)


class DeviceBlocks(DevicePlan):
    """The kept blocks of a convolution's im2col matrix."""

    plan: BlockPlan

    @functools.cached_property
    def blocks(self) -> Blocks:
        """The kept blocks, as the argument of kernels; in a given buffer, long enough for any plan of the kind."""
        kept = self.lists[0] if self._given else self.device.upload(np.array(self.plan.chosen))
        return Blocks(kept, self.plan.height, self.plan.width, together=self.plan.together)


class DeviceChannelBlocks(DeviceBlocks):
    """The kept blocks of channels of a convolution's input."""

    plan: ChannelBlockPlan

    @functools.cached_property
    def blocks(self) -> Blocks:
        own = self.plan.chosen, self.plan.kept
        kept, channels = self._parts() if self._given else [self.device.upload(np.array(indices)) for indices in own]
        return Blocks(kept, self.plan.height, self.plan.width, channels)


class DeviceSamples(DevicePlan):
    """The entries of an activation that each sample keeps."""

    plan: SamplePlan

    @functools.cached_property
    def _host(self) -> tuple[np.ndarray, ...]:
        return tuple(np.asarray(array, np.int32) for array in self.plan.lists()[:2])  # the bits and the starts

    @functools.cached_property
    def lists(self) -> SampleLists:
        bits, starts = self._parts()
        return SampleLists(bits, starts, self.plan.group, self.plan.n)

    def chosen(self):
        return ChosenSamples(self.plan, functools.partial(self.device.download, self.lists.bits))


KINDS = {
    BernoulliPlan: DeviceBits,
    SamplePlan: DeviceSamples,
    PositionTilePlan: DevicePositionTiles,
    PositionPlan: DevicePositions,
    UnitWindow: DeviceUnits,
    AxisPlan: DeviceAxis,
    TimePlan: DeviceTimes,
    TilePlan: DeviceTiles,
    ChannelBlockPlan: DeviceChannelBlocks,
    BlockPlan: DeviceBlocks,
}


def upload_plan(plan: Plan, dev: Device, buffer: Any = None) -> DevicePlan:
    """Return a new `DevicePlan` of the plan, which is not cached. Its lists are in `buffer` if that is given."""
    kind = next((form for kind, form in KINDS.items() if isinstance(plan, kind)), DevicePlan)
    return kind(plan, dev, buffer)


_held = functools.lru_cache(maxsize=1024)(upload_plan)


def on_device(plan: Plan, dev: Device) -> DevicePlan:
    """Return the `DevicePlan` of the plan. It is cached if the plan is cacheable."""
    return (_held if plan.cacheable else upload_plan)(plan, dev)


def on(name: str, plan: Plan | DevicePlan, dev: Device, kind: type[DevicePlan], shape: tuple[int, ...] | None = None) -> Any:
    """Return the `DevicePlan` for the op `name`; raise TypeError or ValueError if it has another class or shape."""
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
    """Return the `DevicePlan` of an axis of which every index is kept. It is cached."""
    return cast(DeviceAxis, on_device(RowPlan(n, 1, 0), dev))
