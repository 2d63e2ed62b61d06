"""A second stream of a GPU, for work of other libraries that goes on beside the kernels."""

from __future__ import annotations

from collections.abc import Callable

from .declare import cuda
from .emulation import emulating


class SecondStream:
    """A stream beside the default one, on which kernels are launched. Neither waits for the other unless it is told to.

    Attributes
    ----------
    stream : cuda.core.Stream
    gpu : str
        The name of the GPU among all GPUs (UUID).
    """

    def __init__(self) -> None:
        from cuda.core import Device

        self._device = Device(cuda.get_current_device().id)
        self._device.set_current()
        self.stream, self.gpu = self._device.create_stream(), self._device.uuid

    def enter(self) -> None:
        """Make the GPU the current one of this thread, for other libraries."""
        self._device.set_current()

    def follow(self) -> None:
        """Let what is added from now on begin after the kernels that have been launched."""
        self.stream.wait(self._device.default_stream)

    def end(self) -> Callable[[], bool]:
        """Return a function that returns True once what has been added until now is finished."""
        event = self.stream.record()
        return lambda: event.is_done


def second_stream_cpu():
    """Return None, because work on the CPU has no streams."""


def second_stream_cuda():
    """Return a new `SecondStream` of the current GPU; None on the emulated device."""
    return None if emulating() else SecondStream()
