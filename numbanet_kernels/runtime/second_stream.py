"""A second stream of a GPU, for work of other libraries that goes on beside the kernels."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .declare import cuda


def current_gpu() -> Any:
    """Return the current GPU, a `cuda.core.Device`; its `uuid` names it among all GPUs."""
    from cuda.core import Device

    gpu = Device(cuda.get_current_device().id)
    gpu.set_current()
    return gpu


class SecondStream:
    """A stream beside the default one, on which kernels are launched. Neither waits for the other unless it is told to.

    Attributes
    ----------
    stream : cuda.core.Stream
    """

    def __init__(self) -> None:
        self.gpu = current_gpu()
        self.stream = self.gpu.create_stream()

    def follow(self) -> None:
        """Let what is added from now on begin after the kernels that have been launched."""
        self.stream.wait(self.gpu.default_stream)

    def end(self) -> Callable[[], bool]:
        """Return a function that returns True once what has been added until now is finished."""
        event = self.stream.record()
        return lambda: event.is_done
