"""Saving: a fitted estimator as one safetensors file, and back.

    arrays      parameters and buffers, by the names that `model_.state_dict()` gives; one that layers share is there once
    metadata    one entry, "numbanet", JSON: version of this layout, class, parameters, layers, learned attributes, names of
                shared and of frozen tensors, and the SHA-256 of all that and the arrays

Every reader of safetensors finds the arrays. Nothing in a file is run, or made an object that is not listed in `described`.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from numbanet_kernels.runtime.interrupt import deferred

from ..device import Device
from ..layers import Sequential, Tree
from ..tensor import Tensor
from .serialization import described, described_layer, made, made_layer

ENTRY, VERSION = "numbanet", 3
MADE_ANEW = ("model_", "optimizer_")
HIDDEN = ("_by_step", "_flat_target", "_several")  # learned, and needed for predictions


# --- saving -----------------------------------------------------------------------------------------------------------
def save(net: Any, path: str | os.PathLike) -> None:
    """Write a fitted estimator: the file is there whole, or as it was before. Errors as of `BaseNet.save`."""
    from safetensors.numpy import save as serialised

    from numbanet.datasets.files import write_file

    check_is_fitted(net, "model_")
    path = check_target(path)
    arrays: dict[str, np.ndarray] = {}
    names: dict[Any, str] = {}
    shared: dict[str, str] = {}
    for name, tensor, _ in net.model_.named():
        if tensor in names:
            shared[name] = names[tensor]
        else:
            names[tensor], arrays[name] = name, np.array(tensor.numpy(), order="C")
    frozen = [names[tensor] for tensor in net.model_.parameters() if not tensor.requires_grad]
    told = {"version": VERSION, "class": type(net).__name__, "shared": shared, "frozen": frozen, **_told(net)}
    content = serialised(arrays, {ENTRY: json.dumps({**told, "sha256": _digest(told, arrays)})})
    with deferred:  # no signal's handler leaves half a file in the folder
        write_file(path, content)


def check_target(path: str | os.PathLike) -> Path:
    """The path, or an error that says why no network can be saved there: asked for before the work, not after."""
    path = Path(path)
    if not path.absolute().parent.is_dir():
        raise FileNotFoundError(f"cannot save to {str(path)!r}: there is no folder {str(path.absolute().parent)!r}")
    if not os.access(path.absolute().parent, os.W_OK):
        raise PermissionError(f"cannot save to {str(path)!r}: the folder {str(path.absolute().parent)!r} cannot be written to")
    if path.is_dir():
        raise IsADirectoryError(f"cannot save to {str(path)!r}: it is a folder; give the name of a file in it")
    return path


def _told(net: Any) -> dict[str, Any]:
    """What is no array; TypeError naming the setting, layer or attribute that JSON has not, and the way out."""
    found: dict[str, Any] = {"layers": [], "given": False, "parameters": {}, "fitted": {}}
    for layer in net.model_.layers:
        try:
            found["layers"].append(described_layer(layer))
        except TypeError as error:
            raise TypeError(
                f"save: layer {error}, which no file can name; keep net.model_.state_dict(), and load it into such "
                "layers by load_state_dict"
            ) from None
    for name, value in net.get_params(deep=False).items():
        if name == "layers" and net._given_layers():
            found["given"] = True  # the trained ones stand for them
            continue
        if name == "callbacks":
            value = _nameable(value)
        try:
            found["parameters"][name] = described(value)
        except TypeError as error:
            raise TypeError(
                f"save: {name}={error}. set_params({name}=...) to another value leaves the trained network as it "
                "is; or keep net.model_.state_dict()"
            ) from None
    for name, value in vars(net).items():
        if not _is_learned(name):
            continue
        try:
            found["fitted"][name] = described(value)
        except TypeError as error:
            if name == "policy_" and value.inference_policy(net.n_iter_ - 1) is None:
                continue  # predictions do without it
            raise TypeError(f"save: {name} cannot be written: {error}; keep net.model_.state_dict()") from None
    return found


def _nameable(callbacks: Sequence[Any] | None) -> list[Any] | None:
    """Those that a file can name; None where there are none."""
    found = []
    for callback in callbacks or ():
        with contextlib.suppress(TypeError):
            described(callback)
            found.append(callback)
    return found or None


def _is_learned(name: str) -> bool:
    """Whether an attribute of that name is learned, and written as it is."""
    return name in HIDDEN or (name.endswith("_") and name[0] != "_" and name not in MADE_ANEW)


def _digest(told: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    found = hashlib.sha256(json.dumps(told).encode())
    for name, array in sorted(arrays.items()):
        found.update(f"{name} {array.dtype} {array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()


# --- loading ----------------------------------------------------------------------------------------------------------
def load(kinds: Sequence[type], path: str | os.PathLike, device: str | Device | None) -> Any:
    """The estimator that a file holds, of one of these kinds, on its device or another one. Errors as of `BaseNet.load`."""
    name, (told, arrays) = os.fspath(path), _read(path)
    saved = told.get("class")
    kind = next((kind for kind in kinds if kind.__name__ == saved), None)
    if kind is None:
        raise ValueError(
            f"{name} holds a {saved}, and no {' or '.join(kind.__name__ for kind in kinds)}: {saved}.load reads it"
        )
    try:
        arrays |= {other: arrays[first] for other, first in told["shared"].items()}
        model = Sequential([made_layer(layer, arrays, f"{i}.") for i, layer in enumerate(told["layers"])])
        for other, first in told["shared"].items():
            _share(model, other, first)
        model.load_state_dict(arrays)
        tensors = {name: tensor for name, tensor, _ in model.named()}
        for frozen in told.get("frozen", ()):
            tensors[frozen].requires_grad = False
        parameters = {setting: made(value) for setting, value in told["parameters"].items()}
        if told["given"]:
            parameters["layers"] = copy.deepcopy(model.layers)
        net = kind(**parameters)
        for learned, value in told["fitted"].items():
            if not _is_learned(learned):
                raise ValueError(f"{learned!r} is nothing that is learned")
            setattr(net, learned, made(value))
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{name} does not hold what this version of numbanet can read: {why}") from error
    if device is not None:
        net.set_params(device=device)
    net._resume(model, net._settings(None, None))
    return net


def _read(path: str | os.PathLike) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """(what the metadata tells, the arrays) of a file; ValueError naming it where it is damaged, foreign or newer."""
    from safetensors import SafetensorError, safe_open

    name = os.fspath(path)
    try:
        with safe_open(name, "numpy") as file:
            text = (file.metadata() or {}).get(ENTRY)
            if text is None:
                raise ValueError(
                    f"{name} is a safetensors file, but none that numbanet saved; its arrays are read by "
                    "safetensors.numpy.load_file, and go into layers by load_state_dict"
                )
            told = _parsed(text)
            if told.get("version") != VERSION and "version" in told:
                raise ValueError(
                    f"{name} has version {told['version']} of the format, and this numbanet reads version "
                    f"{VERSION}: update numbanet, or save again with this one"
                )
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  it is no mapping
    except SafetensorError as error:
        raise ValueError(f"{name} is no safetensors file, or a truncated one: {error}") from error
    if not _is_whole(told, arrays):
        raise ValueError(f"{name} is damaged: its SHA-256 is not that of what was saved; save again, or take another copy")
    return told, arrays


def _is_whole(told: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> bool:
    """Whether the SHA-256 of a file, which is taken out, is that of what it holds."""
    try:
        return told.pop("sha256", None) == _digest(told, arrays)
    except RecursionError:  # nothing that was saved is nested so deeply
        return False


def _parsed(text: str) -> dict[str, Any]:
    """The JSON of a file, or nothing where it is none."""
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _share(model: Sequential, name: str, first: str) -> None:
    """Put the tensor of one name in place of that of another."""
    tree = Tree(model)
    (here, attribute), (there, own) = tree.holder(name), tree.holder(first)
    if not isinstance(tensor := getattr(there, own), Tensor):
        raise ValueError(f"{first} is no tensor")
    setattr(here, attribute, tensor)
