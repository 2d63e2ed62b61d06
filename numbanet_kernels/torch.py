"""The table of the device "torch": the CPU's operations, but dense products and convolutions are those of PyTorch.

It is one of the devices among which `numbanet.placement` chooses. Its arrays are NumPy arrays, as on the CPU, and PyTorch works
on the same memory (`from_numpy`): nothing is copied between the two devices. An operation, or a part that a plan keeps, that is
not replaced below stays with the CPU's kernels; so random numbers are the same, and results are the CPU's up to rounding.
Nothing is recorded.
"""

from __future__ import annotations

try:
    import torch as _torch
except ImportError as error:
    raise ImportError(f"it needs PyTorch: pip install torch ({error})") from error

from . import cpu as _cpu
from .families.conv import check as _check, check_pool_grad as _check_pool_grad
from .families.gemm import _output
from .families.reduce import sum_rows_cpu as _sum_rows
from .host import threads as _threads
from .runtime.memory import empty_cpu as _empty

globals().update({name: f for name, f in vars(_cpu).items() if callable(f) and not name.startswith("_")})


def _view(x):
    """The array as PyTorch's tensor of the same memory; a copy if it is read-only, which tensors cannot be."""
    return _torch.from_numpy(x if x.flags.writeable else x.copy())


def records():
    """Return False: calls of PyTorch cannot be recorded on a tape."""
    return False


def _ready():
    """Let PyTorch use as many threads as the session."""
    if _torch.get_num_threads() != (count := _threads.count()):
        _torch.set_num_threads(count)


def gemm(a, b, ta=False, tb=False, bias=None, relu=False, scale=1.0, where=None, out=None):
    """c[m, n] = act(scale * sum_k A[m, k] B[k, n] + bias[n]); if `where` is given, 0 unless where[m, n] > 0"""
    out = _output(_empty, a, b, ta, tb, bias, where, out)
    _ready()
    c = _view(out)
    _torch.mm(_view(a).T if ta else _view(a), _view(b).T if tb else _view(b), out=c)
    _finish(c, bias, relu, scale)
    if where is not None:
        c.copy_(_torch.where(_view(where) > 0, c, 0))  # not a product, because infinity times 0 is NaN
    return out


def _finish(c, bias, relu, scale):
    """Multiply c, in place, then add the bias and apply ReLU."""
    if scale != 1:
        c.mul_(scale)
    if bias is not None:
        c.add_(_view(bias))
    if relu:
        c.clamp_(min=0)


def gemm_dw(dy, x, db_scale=1.0):
    """Return (dw, db), where dw[o, i] = sum_n dy[n, o] x[n, i] and db[o] = db_scale * sum_n dy[n, o]."""
    return gemm(dy, x, ta=True), _sum_rows(dy, db_scale)


def _images(x):
    """Images with channels last as PyTorch's tensor (N, C, H, W) of the same memory."""
    return _view(x).permute(0, 3, 1, 2)


def _channels_last(y):
    """A tensor (N, C, H, W) as a contiguous array (N, H, W, C); a copy only if it lies otherwise."""
    return y.permute(0, 2, 3, 1).contiguous().numpy()


def conv2d(x, w, window, groups=1, bias=None, relu=False, scale=1.0, rows=None, blocks=None):
    """y[r, o] = act(scale sum_k A[r, k] w[o, k] + bias[o]), where A is the im2col matrix of x."""
    if rows is not None or blocks is not None:
        return _cpu.conv2d(x, w, window, groups, bias, relu, scale, rows, blocks)
    _check("conv2d (torch)", x, w, window, groups, bias)
    _ready()
    y = _torch.conv2d(_images(x), _view(w), None, window.stride, window.padding, window.dilation, groups)
    y = y.permute(0, 2, 3, 1).contiguous()
    _finish(y, bias, relu, scale)
    return y.numpy()


def conv2d_max_pool(x, w, window, pool, groups=1, bias=None, relu=False, scale=1.0, rows=None, blocks=None, wants_places=True):
    """(y, places) = max_pool(conv2d(x, w, …), pool)"""
    if rows is not None or blocks is not None:
        return _cpu.conv2d_max_pool(x, w, window, pool, groups, bias, relu, scale, rows, blocks, wants_places)
    y, places = _cpu.max_pool(conv2d(x, w, window, groups, bias, relu, scale), pool)
    return y, places if wants_places else None


def conv2d_grad(dy, x, w, window, groups=1, where=None, scale=1.0, rows=None, blocks=None, wants_dx=True):
    """(dx or None, dw, db) of conv2d"""
    if rows is not None or blocks is not None:
        return _cpu.conv2d_grad(dy, x, w, window, groups, where, scale, rows, blocks, wants_dx)
    _check("conv2d_grad (torch)", x, w, window, groups, None, dy, where)
    _ready()
    dz = _images(dy) if where is None else _torch.where(_images(where) > 0, _images(dy), 0)
    dx, dw, _ = _torch.ops.aten.convolution_backward(
        dz,
        _images(x),
        _view(w),
        None,
        window.stride,
        window.padding,
        window.dilation,
        False,  # not transposed
        (0, 0),
        groups,
        (wants_dx, True, False),
    )
    if scale != 1:
        dw.mul_(scale)
        dx = None if dx is None else dx.mul_(scale)
    return _channels_last(dx) if wants_dx else None, dw.contiguous().numpy(), dz.sum((0, 2, 3)).numpy()


def conv2d_max_pool_grad(
    dy, y, places, x, w, window, pool, groups=1, relu=False, scale=1.0, rows=None, blocks=None, wants_dx=True
):
    """(dx or None, dw, db) of conv2d_max_pool"""
    if rows is not None or blocks is not None:
        return _cpu.conv2d_max_pool_grad(dy, y, places, x, w, window, pool, groups, relu, scale, rows, blocks, wants_dx)
    positions = _check("conv2d_max_pool_grad (torch)", x, w, window, groups)
    shape = (len(x), *positions, len(w))
    _check_pool_grad("conv2d_max_pool_grad (torch)", pool, shape, dy, y, places)
    dz = _cpu.max_pool_grad(_cpu.relu_grad(dy, y) if relu else dy, places, pool, shape)
    return conv2d_grad(dz, x, w, window, groups, None, scale, wants_dx=wants_dx)
