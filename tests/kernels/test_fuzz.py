"""Operations with arguments that do not fit, in a process of its own: each refuses by name and changes nothing, or works, and
no write goes outside an array. On the CPU every array, and what operations allocate, lies between guards (`guards`); on the
emulated device the machine looks at every address.

    python -m tests.kernels.test_fuzz DEVICE CALLS SEED    prints what was wrong, one line each, and last what was called
"""

import faulthandler
import importlib
import inspect
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from numbanet_kernels.runtime import availability

ROOT = Path(__file__).parents[2]
SIZES = 13, 24, 17
LONG = pytest.param("cpu", 4000, "1", marks=pytest.mark.long)  # loops look at every index, and are compiled anew for it


@pytest.mark.skipif(not sys.platform.startswith(("linux", "darwin")), reason="needs mprotect")
@pytest.mark.parametrize("device, calls, looking", [("cpu", 4000, ""), ("emulated", 150, ""), LONG])
@pytest.mark.slow
def test_what_does_not_fit_is_refused_and_nothing_is_written_outside(device, calls, looking, tmp_path):
    if device == "emulated" and availability.nvvm_problem():
        pytest.skip(availability.nvvm_problem())
    looks = {"NUMBA_BOUNDSCHECK": "1", "NUMBA_CACHE_DIR": str(tmp_path)} if looking else {}
    done = subprocess.run(
        [sys.executable, "-m", __name__, device, str(calls), "0"],
        capture_output=True,
        text=True,
        timeout=600,
        cwd=ROOT,
        env={**os.environ, "PYTHONMALLOC": "debug", "OPENBLAS_NUM_THREADS": "3", **looks},
    )
    said = f"{done.stdout[-3000:]}{done.stderr[-3000:]}"
    assert done.returncode == 0 and done.stdout.endswith("nothing was wrong\n"), said


@pytest.mark.skipif(not sys.platform.startswith(("linux", "darwin")), reason="needs mprotect")
@pytest.mark.parametrize("place", [-1, 20])
@pytest.mark.parametrize("skipped", [0, 1])
def test_the_guards_find_a_write(place, skipped):
    """Of one byte, before and after an array that lies at either end of its pages."""
    code = (
        f"import ctypes, numpy as np\nfrom tests.kernels import guards\n"
        f"guards.empty({skipped})\nguards.empty(1) if {skipped} else None\n"
        f"a = guards.guarded(np.ones(5, np.float32))\nctypes.memset(a.ctypes.data + {place}, 0, 1)\nguards.check()"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT)
    assert done.returncode < 0 or "written beside" in done.stderr


# --- arguments that do not fit ----------------------------------------------------------------------------------------
def leaves(value, path=()):
    """(path, leaf) of everything in nested tuples, lists and dicts."""
    if isinstance(value, dict):
        parts = value.items()
    elif isinstance(value, (tuple, list)):
        parts = enumerate(value)
    else:
        yield path, value
        return
    for key, part in parts:
        yield from leaves(part, (*path, key))


def replaced(value, path, leaf):
    """The value with another leaf at this path."""
    if not path:
        return leaf
    if isinstance(value, dict):
        return {**value, path[0]: replaced(value[path[0]], path[1:], leaf)}
    parts = list(value)
    parts[path[0]] = replaced(parts[path[0]], path[1:], leaf)
    return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)


def mapped(value, change):
    """The value with change(array) for each array in it."""
    for path, leaf in leaves(value):
        if isinstance(leaf, np.ndarray):
            value = replaced(value, path, change(leaf))
    return value


def _other_shape(rng, array):
    shape = list(array.shape)
    axis = rng.integers(array.ndim) if array.ndim else 0
    kind = rng.integers(7)
    if kind == 0 or not shape:
        shape.append(int(rng.integers(3)))
    elif kind == 1:
        shape.insert(0, 2)
    elif kind == 2:
        shape.pop(axis)
    elif kind == 3:
        shape.reverse()
    else:
        shape[axis] = max(0, (shape[axis] + 1, shape[axis] - 1, shape[axis] // 2, 2 * shape[axis] + 3, 0)[rng.integers(5)])
    return np.resize(array, shape) if array.size else np.ones(shape, array.dtype)


def spoiled(rng, leaf, values=True):
    """Another leaf of the same kind: an array of another shape, dtype or layout, a number, slice or None; if `values`, an array
    of integers of another range, too."""
    if isinstance(leaf, np.ndarray):
        kind = rng.integers(8)
        if kind == 0:
            return leaf.astype((np.float64, np.int64, np.int32, np.float32, np.uint8, np.bool_)[rng.integers(6)])
        if kind == 1 and leaf.ndim > 1:
            return np.asfortranarray(leaf)
        if kind == 2 and leaf.ndim:
            return np.repeat(leaf, 2, axis=leaf.ndim - 1)[..., ::2]
        if kind == 3 and values and leaf.dtype.kind == "i" and leaf.size:
            far = leaf.copy()
            far.flat[rng.integers(leaf.size)] = (-1, -7, leaf.max() + 1, 2**31 - 1, -(2**31))[rng.integers(5)]
            return far
        return _other_shape(rng, leaf)
    if isinstance(leaf, (bool, np.bool_)):
        return not leaf
    if isinstance(leaf, (int, np.integer)):
        return int((0, 1, -1, leaf + 1, leaf - 1, 2 * leaf + 1, 37)[rng.integers(7)])
    if isinstance(leaf, float):
        return (-1.0, 0.0, 1.0, float("nan"), 1e30)[rng.integers(5)]
    if isinstance(leaf, slice):
        return (slice(None), slice(0, 5), slice(2, None, 2), slice(None, None, -1), slice(1, 10**6, 3), None)[rng.integers(6)]
    return np.ones(tuple(rng.integers(0, 9, size=rng.integers(1, 3))), np.float32) if leaf is None else leaf


# --- in the process of its own ----------------------------------------------------------------------------------------
def prepared(dev):
    """Calls with what is prepared of a weight, an activation and a gradient, beyond the examples of the families."""
    from numbanet_kernels.examples import Example
    from numbanet_kernels.layouts.packed import LazyBlocks, SGDUpdate
    from numbanet_kernels.layouts.rows import Period
    from numbanet_kernels.layouts.tiles import Pattern, kept_tiles
    from numbanet_kernels.layouts.windows import Blocks, Window

    N, I, O = SIZES
    rng, pattern = np.random.default_rng(1), Pattern((O, I), 4, 3, 1, 2)

    def a(*shape):
        return dev.upload(rng.standard_normal(shape, np.float32))

    x, w, dy = a(N, I), a(O, I), a(N, O)
    blocks, inputs, (given, outputs) = dev.tile_blocks(w, pattern), dev.tile_inputs(x, pattern), dev.tile_outputs(dy, pattern)
    kept = [dev.upload(np.arange(first, n, 2, dtype=np.int32)) for n, first in ((O, 1), (I, 0))]
    periods = [Period(kept[0], slice(1, O, 2)), Period(kept[1], slice(0, I, 2))]
    yield Example("tile_blocks", (w, pattern), {})
    yield Example("tile_inputs", (x, pattern), {})
    yield Example("tile_outputs", (dy, pattern, 2.0, dy), {})
    yield Example("tile_room", (pattern,), {})
    yield Example("gemm_tiles", (x, w, pattern), {"blocks": blocks, "inputs": inputs, "out": a(N, O)})
    yield Example("gemm_tiles_dx", (given, w, pattern), {"blocks": blocks, "outputs": outputs, "where": x})
    yield Example("gemm_tiles_dw", (given, x, pattern), {"blocks": blocks, "inputs": inputs, "outputs": outputs})
    for rows, cols in (kept, periods):
        yield Example("gemm_rows", (a(N, I // 2), w, rows, cols, a(O)), {"out": a(N, O // 2)})
        yield Example("gemm_rows_dx", (a(N, O // 2), w, rows, cols, a(N, I // 2)), {})
    yield Example("take_rows", (w, dev.upload(rng.integers(O, size=(3, 4)).astype(np.int32))), {})
    yield Example("copy", (w,), {"out": a(O, I)})
    yield Example("full", ((N, I), 1.5), {"out": a(N, I)})
    yield Example("reshape", (w, (I, O)), {})
    yield Example("part", (w, 2, 5), {})
    if hasattr(dev, "conv2d"):
        images, weight, window, slopes = a(2, 5, 4, 3), a(5, 3, 3, 3), Window((3, 3), (2, 1), (1, 1)), a(2, 3, 4, 5)
        grouped = a(4, 2, 3, 3), window, 2
        few = dev.upload(np.arange(1, 24, 3, dtype=np.int32))
        some = Blocks(dev.upload(np.array([[0, 2], [1, 6], [3, 4], [2, 5]], np.int32)), 7, 4)
        for thinned in ({}, {"rows": few}, {"blocks": some}):
            yield Example("conv2d", (images, weight, window), {"bias": a(5), "relu": True, **thinned})
            yield Example("conv2d_grad", (slopes, images, weight, window), {"where": slopes, "scale": 2.0, **thinned})
        yield Example("conv2d", (a(2, 5, 4, 4), *grouped), {"rows": few})
        yield Example("conv2d_grad", (a(2, 3, 4, 4), a(2, 5, 4, 4), *grouped), {"wants_dx": False})
        images, weight, window, slopes = a(4, 5, 6, 9), a(10, 9, 3, 3), Window((3, 3), (1, 1), (1, 1)), a(4, 5, 6, 10)
        yield Example("conv2d", (images, weight, window), {"bias": a(10), "relu": True})  # Winograd's filtering on CUDA
        yield Example("conv2d_grad", (slopes, images, weight, window), {"where": slopes, "scale": 2.0})
    if dev.__name__.endswith(".cpu"):  # enough channels for Winograd's filtering
        images, weight, window, slopes = a(17, 6, 6, 40), a(33, 40, 3, 3), Window((3, 3), (1, 1), (1, 1)), a(17, 6, 6, 33)
        yield Example("conv2d", (images, weight, window), {"bias": a(33), "relu": True})
        yield Example("conv2d_grad", (slopes, images, weight, window), {"where": slopes, "scale": 2.0})
        abreast, weight, pool = a(35, 9, 8, 2), a(3, 2, 3, 3), Window((3, 2), (2, 2), (1, 1))
        y, marks = dev.conv2d_max_pool(abreast, weight, window, pool, relu=True)
        yield Example("conv2d_max_pool", (abreast, weight, window, pool), {"bias": a(3), "relu": True})
        held = np.array(y), np.array(y), np.array(marks), abreast, weight, window, pool
        yield Example("conv2d_max_pool_grad", held, {"relu": True})
    lag, current = dev.upload(np.zeros(pattern.grid, np.int32)), dev.upload(np.ones(pattern.grid, np.bool_))
    lazy = LazyBlocks(lag, lag, current, dev.upload(kept_tiles(pattern)), dev.sgd_powers(8, 0.1, 0.9), (4, 4))
    yield Example("sgd", ([SGDUpdate(w, a(O, I), a(O, I), None, lazy, dev.tile_room(pattern))], 0.1, 0.9), {})


def spoiled_call(rng, call, function, values):
    """The call with up to three of its leaves spoiled, or an argument given that it leaves out; and how many it were."""
    times = int(rng.integers(4))
    for _ in range(times):
        given = [*inspect.signature(function).parameters][: len(call.arguments)]
        left_out = [
            p.name
            for p in inspect.signature(function).parameters.values()
            if p.name in ARRAYS and p.name not in (*given, *call.options) and (call.op, p.name) not in STRUCTURES
        ]
        if left_out and rng.random() < 0.3:
            call = call._replace(options={**call.options, left_out[rng.integers(len(left_out))]: spoiled(rng, None)})
            continue
        places = [(path, leaf) for path, leaf in leaves((call.arguments, call.options))]
        path, leaf = places[rng.integers(len(places))]
        arguments, options = replaced((call.arguments, call.options), path, spoiled(rng, leaf, values))
        call = call._replace(arguments=arguments, options=options)
    return call, times


def arrays_of(value):
    return [leaf for _, leaf in leaves(value) if isinstance(leaf, np.ndarray)]


def wrong(dev, call, times, put, check):
    """(what is wrong with how an operation takes a call, if anything; whether it refused)"""
    call = mapped(call, put)
    before = arrays_of(tuple(call))
    copies = [array.copy() for array in before]
    refused, problem = False, None
    try:
        call.run(dev)
        check()
    except (ValueError, TypeError, IndexError, ArithmeticError) as error:
        refused = True
        if not times:
            problem = f"refused what is right: {error}"
        elif any(not np.array_equal(a, b, equal_nan=a.dtype.kind == "f") for a, b in zip(before, copies)):
            problem = f"refused after it had changed something: {error}"
        elif isinstance(error, (ValueError, TypeError)) and call.op not in str(error) and call.op not in UNNAMED:
            problem = f"refused without its name: {error}"
        if str(error) == "index is out of bounds":  # what NUMBA_BOUNDSCHECK finds in a loop
            problem = str(error)
    except Exception as error:
        problem = f"{type(error).__name__}: {error}"
    return problem and f"{call.op}: {problem}: {described(call)}", refused


def described(call):
    return mapped(call, lambda array: f"{array.dtype}{list(array.shape)}")[1:]


ARRAYS = {"out", "bias", "b", "where", "weights", "shift", "blocks", "inputs", "outputs", "lists", "y", "kept", "lazy", "into"}
STRUCTURES = {(op, "blocks") for op in ("conv2d", "conv2d_grad", "conv2d_max_pool", "conv2d_max_pool_grad")}
UNNAMED = {"getitem", "putitem", "full", "reshape", "dropout"}  # NumPy or `random` says it


def main(device, calls, seed):
    faulthandler.enable()
    from numbanet_kernels import examples
    from numbanet_kernels.host import thresholds

    dev, check = importlib.import_module(f"numbanet_kernels.{device}"), lambda: None
    put = dev.upload
    if device == "cpu":
        from tests.kernels import guards

        check, put = guards.check, lambda array: guards.guarded(array) if array.flags["C_CONTIGUOUS"] else array
    good = [*(examples.example(name, SIZES) for name in examples.families()), *prepared(dev)]
    good = [mapped(call, np.array) for call in good]
    rng, problems, refusals = np.random.default_rng(seed), [], 0
    for number in range(calls):
        call, times = spoiled_call(
            rng, good[number % len(good)], getattr(dev, good[number % len(good)].op), device == "cpu"
        )  # elsewhere what is in lists of indices is trusted: nobody looks at it
        shared = thresholds.Thresholds(1, 1, 0) if number % 3 == 0 else thresholds.current
        with np.errstate(all="ignore"), thresholds.using(shared):
            problem, refused = wrong(dev, call, times, put, check)
        problems += [problem] if problem else []
        refusals += refused
    print(*problems, sep="\n")
    print(f"{calls} calls, {refusals} refused: {f'{len(problems)} were' if problems else 'nothing was'} wrong")


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
