"""The cache of profiles: which file holds the profile of a model, and when it may be used again.

The name of the file is a digest of what decides the times. Classes outside numbanet, of layers and of optimisers, count with
the source of their modules, because one that is edited keeps its name; what the modules import does not count. What cannot be
described has no file, and is measured each time.
"""

from __future__ import annotations

import hashlib
import inspect
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..layers import Layer, Sequential, walk
from ..tensor import Tensor
from ..training.optim import Optimizer
from . import facts
from .stages import parts
from .table import Profile, folder

OWN = {"numbanet", "numbanet_kernels", *sys.stdlib_module_names}  # packages whose classes have a version
PLAIN = (bool, int, float, complex, str, bytes, type(None))


class _Unknown(Exception):
    """Raised for what cannot be described by a text that is the same in each process."""


def place_of(model: Sequential, optimizer: Callable[[list[Tensor]], Optimizer] | None, *settings: Any) -> Path | None:
    """Return the file of the profile of a model, measured with these settings; None if there is something in the model or in
    its optimisers that cannot be described. Without updates `optimizer` is None.
    """
    try:
        layers = [(path, *_kind(type(layer)), _inside(layer)) for path, layer in walk(model)]
        made = [optimizer(part.updated) for part in parts(model) if part.updated] if optimizer else []
        decides = repr((layers, [(*_kind(type(each)), _described(_hyperparameters(each))) for each in made], settings))
    except (_Unknown, RecursionError):  # a list may hold itself
        return None
    return folder() / f"{hashlib.sha256(decides.encode()).hexdigest()[:24]}.json"


def read(path: Path) -> Profile | None:
    """Return the profile in the cache; None if there is none, it is unreadable, or machine or versions have changed."""
    try:
        found = Profile.load(path)
    except FileNotFoundError:
        return None
    except ValueError as error:
        warnings.warn(f"profile: {error}; it is measured anew", stacklevel=5)
        return None
    return found if (found.machine, dict(found.versions)) == (facts.machine(), facts.versions()) else None


def written(result: Profile, path: Path) -> Profile:
    """Return the profile after it was written to the cache; warn if that is not possible."""
    try:
        result.save(path)
    except OSError as error:
        warnings.warn(f"profile: it is not kept, as {path} cannot be written ({error})", stacklevel=5)
    return result


# --- what decides -----------------------------------------------------------------------------------------------------
def _own(kind: type) -> bool:
    return kind.__module__.partition(".")[0] in OWN


def _kind(kind: type) -> list[tuple[str, ...]]:
    """Return module and name of a class and its bases, with the source of the modules of those outside numbanet. A class that
    a function makes is unknown, because the source does not tell the variables that it takes from there.
    """
    found = []
    for each in kind.__mro__:
        name: tuple[str, ...] = each.__module__, each.__qualname__
        if not _own(each):
            if "<locals>" in each.__qualname__:
                raise _Unknown
            try:
                name = *name, inspect.getsource(sys.modules[each.__module__])
            except (KeyError, OSError, TypeError):
                raise _Unknown from None
        found.append(name)
    return found


def _inside(layer: Layer) -> Any:
    """Return the text of a layer of numbanet, without the addresses of layers in it that have no text of their own; and the
    attributes of another one, whose `repr` may leave some out.
    """
    return re.sub(" at 0x[0-9a-fA-F]+", "", repr(layer)) if _own(type(layer)) else _described(vars(layer))


def _hyperparameters(optimizer: Optimizer) -> dict[str, Any]:
    return {name: value for name, value in vars(optimizer).items() if name != "parameters"}


def _described(value: Any) -> Any:
    """Return what tells a value, for `repr`; of tensors the shape, of layers nothing, because `place_of` describes them."""
    if type(value) in PLAIN:
        return value
    if isinstance(value, Layer):
        return "layer"
    if isinstance(value, Tensor):
        return "tensor", value.shape, value.requires_grad
    if isinstance(value, np.generic):
        return str(value.dtype), value.item()
    if isinstance(value, Mapping):
        return [(_described(key), _described(each)) for key, each in value.items()]
    if isinstance(value, (list, tuple)):
        return [_described(each) for each in value]
    if isinstance(value, (set, frozenset)):
        return sorted(repr(_described(each)) for each in value)
    raise _Unknown
