"""Operations that allocate and copy arrays, and exchange them with other libraries."""

from __future__ import annotations

import math

import numpy as np

from . import arrays, driver
from .declare import cuda, host_kernel, kernel, kernels, tape
from .emulation import emulating
from .expect import FLOAT32, check
from .launch import ceil_div, launch, refuse_to_record, synchronize
from .pool import SMALL, lend_device, lend_host

THREADS = 256


def output(op, empty, out, shape="S", dtype=FLOAT32, **arrays):
    """Check the arrays of an operation, then return its output array: `out` if given, else a new array of empty(shape, dtype).

    `arrays` and `shape` are written as in `expect.check`, which raises the errors.
    """
    if out is not None:
        arrays["out"] = out, shape, dtype
    found = check(op, arrays)
    if out is not None:
        return out
    return empty(found[shape] if shape.__class__ is str else tuple([found.get(n, n) for n in shape]), dtype)


# --- CPU --------------------------------------------------------------------------------------------------------------
def _sized(shape, dtype):
    """Return (number of bytes, shape as a tuple, dtype as a NumPy dtype) of an array."""
    if shape.__class__ is not tuple:
        shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if dtype.__class__ is not FLOAT32.__class__:
        dtype = FLOAT32 if dtype is np.float32 else np.dtype(dtype)
    return math.prod(shape) * dtype.itemsize, shape, dtype


def empty_cpu(shape, dtype=np.float32):
    """y = an uninitialised array of this shape and dtype."""
    size, shape, dtype = _sized(shape, dtype)
    if (writer := tape.get()) is not None:
        return writer.lend(size, shape, dtype)
    return np.empty(shape, dtype) if size < SMALL else lend_host(size, shape, dtype)


@host_kernel("void(f4[::1], f4)")
def _fill(y, value):
    y[:] = value


@host_kernel("void(u1[::1], u1[::1])", makes_arrays=True)
def _copy(x, y):
    y[:] = x


AXES = 4  # largest number of axes of the arrays of `_assign`


@host_kernel("void(f4[:, :, :, :], f4[:, :, :, :])")
def _assign(x, y):
    for i in range(y.shape[0]):
        for j in range(y.shape[1]):
            for k in range(y.shape[2]):
                for m in range(y.shape[3]):
                    y[i, j, k, m] = x[i, j, k, m]


def assign(x, out):
    """out = x for arrays of the same shape and dtype, with any strides."""
    if (writer := tape.get()) is None:
        np.copyto(out, x)
    elif x.flags.c_contiguous and out.flags.c_contiguous:
        _copy(flat(x).view(np.uint8), flat(out).view(np.uint8))
    elif x.dtype == out.dtype == FLOAT32 and x.ndim <= AXES:
        _assign(*(array[(None,) * (AXES - array.ndim)] for array in (x, out)))
    else:
        writer.refuse(f"a copy of {x.dtype} {x.shape} with gaps")
    return out


def full_cpu(shape, value, dtype=np.float32, out=None):
    """y[...] = value."""
    out = output("full (cpu)", empty_cpu, out, (shape,) if isinstance(shape, int) else tuple(shape), np.dtype(dtype))
    if (writer := tape.get()) is None:
        out.fill(value)
    elif out.dtype == FLOAT32:
        _fill(flat(out), value)
    else:
        writer.refuse(f"full with {out.dtype}")
    return out


def upload_cpu(host, dtype=None):
    """y = the values of a host array on the device; on the CPU the array itself if it is C-contiguous and has `dtype`."""
    return np.asarray(host, dtype, order="C")


def download_cpu(x):
    """y = the values of x as a NumPy array; on the CPU it is x itself."""
    return x


def copy_cpu(x, out=None):
    """y = x, a copy."""
    if out is None:
        out = empty_cpu(x.shape, x.dtype)
    elif out.shape != x.shape or out.dtype is not x.dtype or not out.flags.c_contiguous:
        output("copy (cpu)", empty_cpu, out, x.shape, x.dtype)
    return assign(x, out)


def part_cpu(x, start, stop):
    """y = x[start:stop], a view."""
    return x[start:stop]


def reshape_cpu(x, shape):
    """y = x.reshape(shape), a view."""
    return x.reshape(shape)


def overlap_cpu(x, y):
    """Return True if the arrays may have an element in common, because their memory overlaps."""
    return isinstance(x, np.ndarray) and isinstance(y, np.ndarray) and np.may_share_memory(x, y)


def from_foreign_cpu(array, dtype=np.float32):
    """y = an array of another library as a device array of this dtype, or of its own if the dtype is None; it shares the memory
    if that has the dtype and is C-contiguous.
    """
    host = np.asarray(np.from_dlpack(array), dtype, order="C")
    return host if host.flags.writeable else host.copy()


def to_dlpack_cpu(x, **options):
    """y = the DLPack capsule of x, with which another library can use the same memory."""
    return x.__dlpack__(**options)


def dlpack_device_cpu(x):
    """y = (device type, device number) in the numbering of DLPack, where the device type 1 is the CPU, and 2 is CUDA."""
    return x.__dlpack_device__()


def cuda_array_interface_cpu(x):
    """Raise AttributeError: by the rules of the interface, an array without this attribute is not on a GPU."""
    raise AttributeError("__cuda_array_interface__: the array is on the CPU")


def synchronize_cpu():
    """Do nothing, because operations on the CPU have finished when they return."""


# --- CUDA -------------------------------------------------------------------------------------------------------------
@kernels("memory")
def _filling():
    @kernel("void(f4[::1], f4)")
    def fill(y, value):
        i = cuda.grid(1)
        if i < y.size:
            y[i] = value

    return fill


def flat(x):
    """Return a view of x with one axis, for one-dimensional kernels."""
    return x.reshape(x.size)


def blocks_for(size: int) -> int:
    """Return the number of blocks of THREADS threads that cover `size` elements."""
    return ceil_div(size, THREADS)


def empty_cuda(shape, dtype=np.float32):
    size, shape, dtype = _sized(shape, dtype)
    return lend_device(size, shape, dtype) if size else arrays.device_array(shape, dtype)


def full_cuda(shape, value, dtype=np.float32, out=None):
    out = output("full (cuda)", empty_cuda, out, (shape,) if isinstance(shape, int) else tuple(shape), np.dtype(dtype))
    if out.dtype != FLOAT32:
        return copy_cuda(np.full(out.shape, value, dtype), out)
    launch(_filling(), blocks_for(out.size), THREADS, flat(out), value)
    return out


def upload_cuda(host, dtype=None):
    host = np.asarray(host, dtype, order="C")
    host = np.array(host, order="C") if 0 in host.strides else host  # Numba would treat an axis with stride 0 as broadcast
    return copy_cuda(host, empty_cuda(host.shape, host.dtype))


def download_cuda(x):
    refuse_to_record("a download")
    return x.copy_to_host()


def copy_cuda(x, out=None):
    refuse_to_record("a copy")
    out = output("copy (cuda)", empty_cuda, out, x.shape, x.dtype)
    if isinstance(x, np.ndarray) and not emulating():
        x = np.ascontiguousarray(x, out.dtype)
    if emulating() or x.dtype != out.dtype or not x.flags["C_CONTIGUOUS"]:
        out.copy_to_device(x)
    else:
        driver.copy(x, out)
    return out


def part_cuda(x, start, stop):
    if isinstance(x, np.ndarray):
        return x[start:stop]
    if (found := arrays.part_at(x, start, stop)) is not None:
        return found
    # Numba takes an axis with stride 0, as all have in an array without elements, for one of length 1
    return x[start:stop] if x.size else empty_cuda((len(range(x.shape[0])[start:stop]), *x.shape[1:]), x.dtype)


def _span(x):
    """Return the addresses of the first byte of x and of the first one after it."""
    # the second interface is that of arrays of the emulated device
    place = x.__cuda_array_interface__ if hasattr(x, "__cuda_array_interface__") else x.__array_interface__
    return place["data"][0], place["data"][0] + x.size * x.dtype.itemsize


def overlap_cuda(x, y):
    (start, stop), (first, last) = _span(x), _span(y)
    return start < last and first < stop


def reshape_cuda(x, shape):
    shape = (shape,) if isinstance(shape, int) else tuple(shape)
    if -1 in shape:
        shape = tuple(x.size // -math.prod(shape) if n == -1 else n for n in shape)
    return x.reshape(*shape) if shape else x.reshape(())


def from_foreign_cuda(array, dtype=np.float32):
    foreign = cuda.as_cuda_array(array)
    if dtype in (None, foreign.dtype) and foreign.is_c_contiguous():
        return foreign
    return upload_cuda(foreign.copy_to_host(), dtype)


def to_dlpack_cuda(x, **options):
    """Raise BufferError: Numba's device arrays have __cuda_array_interface__ instead, which PyTorch and CuPy accept."""
    raise BufferError(
        "__dlpack__: not offered on CUDA; torch.as_tensor(t) and cupy.asarray(t) accept the tensor without a copy, "
        "through __cuda_array_interface__"
    )


def dlpack_device_cuda(x):
    return 2, cuda.get_current_device().id


def cuda_array_interface_cuda(x):
    """Return the dict of the CUDA array interface: PyTorch, CuPy and Numba read the address, shape and dtype from it."""
    return x.__cuda_array_interface__


def synchronize_cuda():
    synchronize()


# --- examples: small calls, for tests, counters and the bench (numbanet_kernels/examples.py) --------------------------
def examples(dev, a, N, I, O):
    """Return a dict of calls, one or more for each operation, that launch the operation's kernels."""
    return {"full": lambda: dev.full((N, O), 2.5)}
