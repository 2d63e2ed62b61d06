"""Functions that write a fitted estimator to one safetensors file, and load it. A file consists of

    arrays      the parameters and buffers, with the names of `model_.state_dict()`; an array that layers share is stored once
    metadata    one entry, "numbanet", in JSON: the format version, the class, the parameters, the layers, the learned
                attributes, the names of shared and of frozen tensors, and the SHA-256 of all this and the arrays

Any safetensors reader can read the arrays. Loading executes no code from the file, and makes only objects of the classes that
`serialization` lists.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from sklearn.utils.validation import check_is_fitted

from numbanet_kernels.runtime.interrupt import deferred

from ..arguments import check_target
from ..device import Device
from ..layers import Layer, Sequential, Tree
from ..layers.sparse import sparse_layers
from .build import are_layers
from .serialization import OwnLayerError, described, described_layer, made, made_layer

ENTRY, VERSION = "numbanet", 3
MADE_ANEW = ("model_", "optimizer_", "placement_")  # a placement is of the machine where it was measured
WAY = "Set another value with set_params({0}=...), which does not change the trained network; or save net.model_.state_dict()"
WAY_LINKED = "Its inverse_link makes the predictions, so no other {0} gives them: save net.model_.state_dict()"
WAY_BEFORE = (  # before training
    "Set another value; or train by fit(checkpoint='run/') without this hook, and `resume` goes on with {0} given again; "
    "or save net.model_.state_dict() in a function in callbacks"
)
HIDDEN = ("_by_step", "_fit_epochs", "_flat_target", "_kept_epoch", "_several")  # private attributes that are saved


# --- saving -----------------------------------------------------------------------------------------------------------
def save(net: Any, path: str | os.PathLike, card: bool = False) -> None:
    """Write a fitted estimator to a file, and its model card if `card`, each atomically; `Estimator.save` lists the errors."""
    from numbanet.datasets.files import write_file

    check_is_fitted(net, "model_")
    path = check_target(path)
    content = serialised(*packed(net))
    contents = {path: content}
    if card:
        from numbanet.io import model_card

        target = check_target(path.with_name(f"{path.name.removesuffix('.safetensors')}.md"))
        contents[target] = model_card(net).encode()
    with deferred:  # so that no signal handler leaves half a file in the folder
        for target, content in contents.items():
            write_file(target, content)


def check(net: Any, hook: str) -> None:
    """Raise the TypeError of `save`, before training, for a hook of this name that is to save the estimator."""
    try:
        _told(net, None, WAY_BEFORE)
    except TypeError as error:
        raise TypeError(f"{hook}: {error}") from None


def packed(net: Any, missing: list[str] | None = None) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Return (metadata, arrays) of an estimator. If `missing` is a list, names of parameters that JSON cannot hold are appended
    to it; otherwise a TypeError is raised.
    """
    arrays, shared, frozen = _tensors(net.model_)
    about = {"version": VERSION, "class": type(net).__name__, "shared": shared, "frozen": frozen}
    return {**about, **_told(net, missing)}, arrays


def _tensors(model: Sequential) -> tuple[dict[str, np.ndarray], dict[str, str], list[str]]:
    """Return the distinct arrays of a model by name, a dict from other names of an array to its name, and the frozen names."""
    arrays: dict[str, np.ndarray] = {}
    names: dict[Any, str] = {}
    shared: dict[str, str] = {}
    for name, tensor, _ in model.named():
        if tensor in names:
            shared[name] = names[tensor]
        else:
            names[tensor], arrays[name] = name, np.array(tensor.numpy(), order="C")
    return arrays, shared, [names[tensor] for tensor in model.parameters() if not tensor.requires_grad]


def serialised(metadata: dict[str, Any], arrays: dict[str, np.ndarray]) -> bytes:
    """Return the content of a safetensors file."""
    from safetensors.numpy import save as to_bytes

    return to_bytes(arrays, {ENTRY: json.dumps({**metadata, "sha256": _digest(metadata, arrays)})})


def _told(net: Any, missing: list[str] | None, way: str = WAY) -> dict[str, Any]:
    """Return the metadata of an estimator; raise a TypeError that names what JSON cannot hold, and the way out, which is `way`
    for a parameter, unless it is a parameter and `missing` is given.
    """
    metadata: dict[str, Any] = {"layers": [], "given": False, "parameters": {}, "fitted": {}}
    for layer in net.model_.layers:
        try:
            metadata["layers"].append(described_layer(layer))
        except TypeError as error:
            raise TypeError(
                f"save: layer {error}, so it cannot be saved; save net.model_.state_dict() instead, and load it into such "
                "layers by load_state_dict"
            ) from None
    for name, value in net.get_params(deep=False).items():
        if name == "layers" and net._given_layers():
            metadata["given"] = True  # the saved layers, which hold the trained weights, stand for the given ones
            continue
        if name in ("parallel", "shard") and missing is None:
            continue  # the loaded estimator trains in one process, unless it is told otherwise; a resumed one as before
        if name == "callbacks":
            named = _nameable(value)
            if missing is not None and len(named or ()) < len(value or ()):
                missing.append(name)
            value = named
        try:
            metadata["parameters"][name] = described(value)
        except TypeError as error:
            if missing is not None:
                missing.append(name)
                continue
            if name == "loss" and way is WAY and net._loss().linked and net._loss() == net._criterion():
                way = WAY_LINKED
            raise TypeError(f"save: {name}={error}. {way.format(name)}") from None
    metadata["fitted"] = _fitted(net, missing is not None)
    if net._made_of != net._architecture():  # a parameter that determines the network has changed since
        whole = {name: None if are_layers(value) else value for name, value in net._made_of.items()}  # None: the saved layers
        metadata["made_of"] = described(whole)
    return metadata


def _fitted(net: Any, lenient: bool) -> dict[str, Any]:
    """Return the fitted attributes as JSON; if `lenient`, without those that the next fit sets again from parameters."""
    fitted = {}
    for name, value in vars(net).items():
        if not _is_learned(name):
            continue
        try:
            fitted[name] = described(value)
        except TypeError as error:
            again = lenient and name in ("policy_", "loss_")
            if again or (name == "policy_" and net._inference_policy() is None):
                continue  # the attribute is not needed for predictions
            if name == "loss_" and not (value.linked or (loss := net._criterion()).linked):
                fitted[name] = described(loss)  # predictions are the same by the loss that stands for it
                continue
            way = "learn text labels, y.astype(str)" if name == "classes_" else "save net.model_.state_dict() instead"
            raise TypeError(f"save: {name} cannot be written: {error}; {way}") from None
    return fitted


def _nameable(callbacks: Sequence[Any] | None) -> list[Any] | None:
    """Return the callbacks that can be saved; None if there are none."""
    saved = []
    for callback in callbacks or ():
        with contextlib.suppress(TypeError):
            described(callback)
            saved.append(callback)
    return saved or None


def _is_learned(name: str) -> bool:
    """Return True if `name` is a fitted attribute that is saved."""
    return name in HIDDEN or (name.endswith("_") and name[0] != "_" and name not in MADE_ANEW)


def _digest(metadata: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(metadata).encode())
    for name, array in sorted(arrays.items()):
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


# --- loading ----------------------------------------------------------------------------------------------------------
def load(kinds: Sequence[type], path: str | os.PathLike, device: str | Device | None) -> Any:
    """Load an estimator of one of the classes `kinds` from a file, to the saved device by default (`Estimator.load`)."""
    name, (metadata, arrays) = os.fspath(path), read(path)
    if metadata.get("checkpoint"):
        raise ValueError(f"{name} is a checkpoint: go on with {metadata.get('class')}.resume of its folder")
    net, model = unpacked(kinds, name, metadata, arrays, {} if device is None else {"device": device})
    net._resume(model, net._settings(None, None))
    return net


def unpacked(
    kinds: Sequence[type], name: str, metadata: dict[str, Any], arrays: dict[str, np.ndarray], parameters: Mapping[str, Any]
) -> tuple[Any, Sequential]:
    """Return (estimator, model) of one of the classes `kinds` from what `read` returned for the file `name`. `parameters`
    replace those of the file.
    """
    saved = metadata.get("class")
    kind = next((kind for kind in kinds if kind.__name__ == saved), None)
    if kind is None:
        way = "resume, with its folder" if metadata.get("checkpoint") else "load"
        raise ValueError(f"{name} holds a {saved}, not a {' or '.join(kind.__name__ for kind in kinds)}: use {saved}.{way}")
    try:
        arrays |= {other: arrays[first] for other, first in metadata["shared"].items()}
        model = _fresh(metadata["layers"], arrays, metadata["shared"])
        model.load_state_dict(arrays)
        Tree(model).freeze(metadata.get("frozen", ()))
        own = {setting: made(value) for setting, value in metadata["parameters"].items()}
        if metadata["given"]:
            own["layers"] = copy.deepcopy(model.layers)
        net = kind(**own)
        for learned, value in metadata["fitted"].items():
            if not _is_learned(learned):
                raise ValueError(f"the file sets {learned!r}, which is not a fitted attribute")
            setattr(net, learned, made(value))
        layers = tuple(net.layers if metadata["given"] else model.layers)
        if metadata["given"]:
            vars(net).update(_trained_layers=layers)
        if "made_of" in metadata:
            whole = made(metadata["made_of"])
            vars(net).update(_made_of={**whole, "layers": layers} if whole.get("layers", 0) is None else whole)
    except OwnLayerError as error:
        raise ValueError(f"{name}: {error}") from None
    except (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ValueError(f"{name} cannot be read by this version of numbanet: {why}") from error
    net.set_params(**parameters)
    return net, model


def _fresh(described: Sequence[Any], arrays: Mapping[str, np.ndarray], shared: Mapping[str, str]) -> Sequential:
    """Return the layers of a file with new weights, which some of them share; `arrays` are known by all names."""
    model = Sequential([made_layer(layer, arrays, f"{i}.") for i, layer in enumerate(described)])
    tree = Tree(model)
    for other, first in shared.items():
        tree.share(other, first)
    return model


def untrained(layers: Sequence[Layer]) -> list[Layer]:
    """Return copies of loaded layers with new weights; frozen ones, and the places of the entries of sparse ones, are kept."""
    arrays, shared, frozen = _tensors(Sequential(layers))
    every = arrays | {other: arrays[first] for other, first in shared.items()}
    model = _fresh(list(map(described_layer, layers)), every, shared)
    rng = np.random.default_rng(0)
    for layer in sparse_layers(model):  # others are made with new values
        values = layer.values
        spread = math.sqrt(2 * layer.out_features / max(math.prod(values.shape), 1))
        values.assign((spread * rng.standard_normal(values.shape)).astype(np.float32))
    for name, tensor, _ in model.named():
        if name in frozen:
            tensor.assign(arrays[name])
    Tree(model).freeze(frozen)
    return model.layers


def read(path: str | os.PathLike) -> tuple[dict[str, Any], dict[str, np.ndarray]]:
    """Read a file, and return (metadata, arrays); raise a ValueError that names the file if it is not a valid one."""
    from safetensors import SafetensorError, safe_open

    name = os.fspath(path)
    if os.path.isdir(name):
        raise IsADirectoryError(f"cannot load {name!r}: it is a folder; give the name of a file in it")
    try:
        with safe_open(name, "numpy") as file:
            text = (file.metadata() or {}).get(ENTRY)
            if text is None:
                raise ValueError(
                    f"{name} is a safetensors file, but numbanet did not save it; read its arrays with "
                    "safetensors.numpy.load_file, and set them in layers with load_state_dict"
                )
            metadata = _parsed(text)
            if metadata.get("version") != VERSION and "version" in metadata:
                raise ValueError(
                    f"{name} has version {metadata['version']} of the format, and this numbanet reads version "
                    f"{VERSION}: update numbanet, or save again with this one"
                )
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118  file is not a mapping
    except SafetensorError as error:
        raise ValueError(f"{name} is not a safetensors file, or is truncated: {error}") from error
    if not _is_whole(metadata, arrays):
        raise ValueError(f"{name} is damaged: its SHA-256 does not match its contents; save again, or use another copy")
    return metadata, arrays


def _is_whole(metadata: dict[str, Any], arrays: Mapping[str, np.ndarray]) -> bool:
    """Remove the SHA-256 from the metadata. Return True if it is that of the rest of the metadata and the arrays."""
    try:
        return metadata.pop("sha256", None) == _digest(metadata, arrays)
    except RecursionError:  # numbanet never saves such deep nesting
        return False


def _parsed(text: str) -> dict[str, Any]:
    """Return the JSON of a file as a dict; it is empty if the JSON is invalid."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
