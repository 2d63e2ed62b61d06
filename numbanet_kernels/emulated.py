"""The operations of the emulated device. They are those of CUDA, but an interpreter of PTX (`ptx`) runs their compiled kernels
on the CPU.

Arrays are in host memory, so exchange with other libraries works as on the CPU.
"""

import numpy as _np

from . import cpu as _cpu, cuda as _cuda
from .runtime.arrays import to_device as _to_device
from .runtime.emulation import emulated as _emulated

_OF_THE_HOST = ("cuda_array_interface", "dlpack_device", "to_dlpack")

globals().update({name: _emulated()(f) for name, f in vars(_cuda).items() if callable(f) and not name.startswith("_")})
globals().update({name: getattr(_cpu, name) for name in _OF_THE_HOST})


@_emulated()
def from_foreign(array, dtype=_np.float32):
    """Return a copy of an array of another library."""
    return _to_device(_cpu.from_foreign(array, dtype))
