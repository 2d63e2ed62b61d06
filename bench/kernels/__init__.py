"""Kernel: one operation in isolation, in numbanet and as the PyTorch op that a user would call instead.

The suite of a family measures the examples of the family's operations (`numbanet_kernels.examples`). A file whose SUITE is the
family's name may add to that; all of these are optional:

    PEERS     {example: function (torch, *arrays of the example) that computes the same in PyTorch}
    SIZES     (N, I, O) of the examples
    SHAPED    False if (N, I, O) does not describe the shapes of its cases
    KERNELS   {name: Kernel}; `cases(options)` lists their sizes. They replace the examples of their operations
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Iterator, Mapping
from types import ModuleType
from typing import Any

import numpy as np

from numbanet_kernels import cpu, examples
from numbanet_kernels.tables import family_of

from ..machinery.harness import Case, Implementation, Options, relative_error
from ..machinery.suites import files
from ..machinery.worker import Task, numbanet_on, torch_on

SEED = 20


def _unchanged(value: np.ndarray, **sizes: Any) -> np.ndarray:
    return value


def _equal_work(**sizes: Any) -> float:
    return 1.0


@dataclasses.dataclass(frozen=True)
class Kernel:
    """One operation and its peer. `sizes` are the keyword arguments of a case; all functions below receive them.

    Attributes
    ----------
    inputs : callable
        (rng, **sizes) -> input arrays on the host.
    numbanet : callable
        (dev, *device arrays, **sizes) -> run; run() returns the result, an array or a tuple of arrays.
    torch : callable
        (torch, *tensors, **sizes) -> run.
    reference : callable
        (*host arrays, **sizes) -> the result in float64.
    dense : callable, default: identity
        (one array of a result, **sizes) -> its dense form, so that compact results can be compared.
    peer_reference : callable, optional
        The `reference` for the PyTorch op, if that computes the dense result and the operation skips a part of it.
    error : callable, optional
        (result, host arrays, **sizes) -> error, for random numbers, which have no elementwise reference.
    flops, bytes : callable
        (**sizes) -> FLOPs, or bytes read and written, that the operation needs at least.
    ceiling : callable, default: 1
        (**sizes) -> work of the PyTorch op divided by work of the operation.
    op : str, optional
        The operation, if it is not the kernel's name.
    """

    inputs: Callable[..., tuple[np.ndarray, ...]]
    numbanet: Callable[..., Callable[[], Any]]
    torch: Callable[..., Callable[[], Any]] | None
    reference: Callable[..., Any]
    dense: Callable[..., np.ndarray] = _unchanged
    peer_reference: Callable[..., Any] | None = None
    error: Callable[..., float] | None = None
    flops: Callable[..., float] | None = None
    bytes: Callable[..., float] | None = None
    ceiling: Callable[..., float] = _equal_work
    op: str | None = None


SIZES = (128, 2048, 2048), (2048, 2048, 2048)  # N, I, O


def file_of(family: str) -> ModuleType | None:
    """The benchmark file of a family, None if it has none."""
    return files().get(family)


def shaped(family: str) -> bool:
    """Whether (N, I, O) describes the shapes of a family's cases."""
    return getattr(file_of(family), "SHAPED", True)


def suite(family: str, options: Options) -> Iterator[Case]:
    """The cases of the family's file, then the examples of its other operations."""
    file = file_of(family)
    if hasattr(file, "cases"):
        yield from file.cases(options)
    covered = {kernel.op or name for name, kernel in getattr(file, "KERNELS", {}).items()}
    sizes = options.sizes((32, 48, 64), *getattr(file, "SIZES", SIZES))
    seen = set()
    for name, module in examples.families().items():
        for size in sizes if family_of(module) == family and name.partition(",")[0] not in covered else ():
            call = examples.example(name, size)
            key = name, tuple(array.shape for array in _arrays(call))
            if key not in seen:  # some examples have the same shapes at all sizes
                seen.add(key)
                yield from cases(family, [(name, dict(zip("nio", size)))], options)


def _arrays(value: Any) -> list[np.ndarray]:
    """All arrays in nested tuples, lists and dicts."""
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, (tuple, list)) else ()
    return [value] if isinstance(value, np.ndarray) else [array for part in parts for array in _arrays(part)]


def _of_example(family: str, name: str) -> Kernel:
    """The Kernel of an example, which makes its arrays itself."""
    module, peer = examples.families()[name], getattr(file_of(family), "PEERS", {}).get(name)

    def call(n: int, i: int, o: int) -> examples.Example:
        return examples.example(name, (n, i, o))

    def numbanet(dev: Any, *arrays: Any, **sizes: int) -> Callable[[], Any]:
        ours = call(**sizes).on(dev)
        first = ours.arguments[0]  # in-place operations change a list of arrays, or all arguments that are arrays
        changed = tuple(first if isinstance(first, list) else (one for one in ours.arguments if hasattr(one, "shape")))

        def run() -> Any:
            result = ours.run(dev)
            return changed if result is None else result

        return run

    def reference(*arrays: np.ndarray, **sizes: int) -> Any:
        """The float64 reference; if there is none, the CPU's operation, which is then NumPy's."""
        ours = call(**sizes)
        function = getattr(module, f"{ours.op}_reference", None) or getattr(cpu, ours.op)
        return function(*ours.arguments, **ours.options)

    def moved(**sizes: int) -> float:
        ours = call(**sizes)
        return float(sum(array.nbytes for array in (*_arrays(ours), *_arrays(ours.run(cpu)))))

    return Kernel(
        lambda rng, **sizes: tuple(_arrays(call(**sizes))),
        numbanet,
        peer and (lambda torch, *arrays, **sizes: lambda: peer(torch, *arrays)),
        reference,
        bytes=moved,
    )


def _kernel(family: str, op: str) -> Kernel:
    return getattr(file_of(family), "KERNELS", {}).get(op) or _of_example(family, op)


def inputs_of(kernel: Kernel, sizes: Mapping[str, Any]) -> tuple[np.ndarray, ...]:
    """The inputs of a kernel at these sizes, equal in each call."""
    return kernel.inputs(np.random.default_rng(SEED), **sizes)


def _tuple(result: Any) -> tuple:
    return tuple(result) if isinstance(result, (tuple, list)) else (result,)


def numbanet_task(family: str, op: str, device: str, sizes: dict[str, Any]) -> Task:
    """Task that runs the operation on a numbanet device."""
    from numbanet.device import device as named

    kernel, dev = _kernel(family, op), named(device)

    def fresh():
        return kernel.numbanet(dev, *(dev.upload(a) for a in inputs_of(kernel, sizes)), **sizes)

    return Task(fresh(), lambda: {"result": [np.array(dev.download(a)) for a in _tuple(fresh()())]}, **numbanet_on(dev))


def torch_task(family: str, op: str, device: str, sizes: dict[str, Any]) -> Task:
    """Task that runs the operation in PyTorch."""
    import torch

    kernel = _kernel(family, op)

    def fresh():
        return kernel.torch(torch, *(torch.from_numpy(a).to(device) for a in inputs_of(kernel, sizes)), **sizes)

    return Task(
        fresh(),
        lambda: {"result": [a.detach().cpu().numpy() for a in _tuple(fresh()())], "peer": True},
        **torch_on(torch, device),
    )


def _error(family: str, op: str, sizes: dict[str, Any], outputs: Mapping[str, Any]) -> float:
    """The largest relative error of the arrays of a result."""
    kernel = _kernel(family, op)
    inputs, result = inputs_of(kernel, sizes), outputs["result"]
    if kernel.error is not None:
        return kernel.error(result, inputs, **sizes)
    reference = kernel.peer_reference if "peer" in outputs and kernel.peer_reference else kernel.reference
    references = _tuple(reference(*inputs, **sizes))
    return max(
        relative_error(kernel.dense(value, **sizes), reference) for value, reference in zip(result, references, strict=True)
    )


def cases(family: str, chosen: Iterable[tuple[str, dict[str, Any]]], options: Options) -> Iterator[Case]:
    """One case for each (op, sizes)."""
    for op, sizes in chosen:
        kernel = _kernel(family, op)
        parameters = {"family": family, "op": op, "device": options.device, "sizes": sizes}
        work = {"flops": kernel.flops and kernel.flops(**sizes), "bytes": kernel.bytes and kernel.bytes(**sizes)}
        torch = options.against == "torch" and kernel.torch is not None
        whole = kernel.ceiling(**sizes) * kernel.flops(**sizes) if torch and kernel.flops else None  # the peer does all
        ours = Implementation(
            "numbanet",
            numbanet_task,
            parameters,
            "torch" if torch else None,
            kernel.ceiling(**sizes) if torch else None,
            **work,
        )
        theirs = (Implementation("torch", torch_task, parameters, flops=whole),) if torch else ()
        name = " ".join((op, *(f"{key}={value}" for key, value in sizes.items())))
        yield Case(family, name, (ours, *theirs), functools.partial(_error, family, op, sizes))
