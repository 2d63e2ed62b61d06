"""PyTorch's modules -> layers: a function for each class of modules."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from torch import nn

from .. import layers
from ..layers import Layer, Sequential, Tree
from ..tensor import Tensor
from . import torch_modules as modules

LEFT_OUT = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, nn.AlphaDropout, nn.FeatureAlphaDropout, nn.Identity)

EMBEDDING = "num_embeddings", "embedding_dim", "max_norm", "norm_type", "scale_grad_by_freq", "sparse"


def _same(module: Any, *names: str) -> dict[str, Any]:
    return {name: getattr(module, name) for name in names}


def _array(part: Any) -> Any:
    """The values of a parameter or buffer."""
    return (part.float() if part.is_floating_point() else part).detach().cpu().numpy()


def _conv(module: nn.Conv2d) -> Layer:
    padding: Any = module.padding
    if isinstance(padding, str):
        ends = [d * (k - 1) for d, k in zip(module.dilation, module.kernel_size, strict=True)]
        if padding == "same" and any(end % 2 for end in ends):
            raise ValueError("padding='same' of an even kernel pads one side more than the other; pad the images themselves")
        padding = tuple(end // 2 for end in ends) if padding == "same" else (0, 0)
    names = "in_channels", "out_channels", "kernel_size", "stride", "dilation", "groups", "padding_mode"
    return layers.Conv2d(**_same(module, *names), padding=padding, bias=module.bias is not None, rng=0)


def _recurrent(kind: type[Layer]) -> Callable[[Any], Layer]:
    names = "input_size", "hidden_size", "num_layers", "bias", "batch_first", "bidirectional"

    def read(module: Any) -> Layer:
        if module.dropout and module.num_layers > 1:
            raise ValueError("dropout between its layers is the estimator's here: set module.dropout = 0, and Net's dropout")
        extra = {"proj_size": module.proj_size} if kind is layers.LSTM else {}
        return kind(**_same(module, *names), **extra, rng=0)  # type: ignore[call-arg]

    return read


def _batch_norm(kind: type[Layer]) -> Callable[[Any], Layer]:
    return lambda module: kind(**_same(module, "num_features", "eps", "momentum", "affine", "track_running_stats"))


def _gather(module: modules.Gather) -> Layer:
    index, mean = _array(module.index), module.mean
    if mean is None and index.size < module.features:
        return layers.Select(module.features, index)
    return layers.Shuffle(index, None if mean is None else _array(mean))


READERS: dict[type[nn.Module], Callable[[Any], Layer]] = {
    nn.AdaptiveAvgPool2d: lambda module: layers.AdaptiveAvgPool2d(module.output_size),
    nn.AvgPool2d: lambda module: layers.AvgPool2d(
        **_same(module, "kernel_size", "stride", "padding", "ceil_mode", "count_include_pad", "divisor_override")
    ),
    nn.BatchNorm1d: _batch_norm(layers.BatchNorm1d),
    nn.BatchNorm2d: _batch_norm(layers.BatchNorm2d),
    nn.Conv2d: _conv,
    modules.Embedding: lambda module: layers.Embedding(**_same(module, "padding_idx", *EMBEDDING), rng=0),
    # its padding_idx only keeps a row from being trained; here it would also end sequences
    nn.Embedding: lambda module: layers.Embedding(**_same(module, *EMBEDDING), rng=0),
    nn.Flatten: lambda module: layers.Flatten(module.start_dim, module.end_dim),
    nn.GELU: lambda module: layers.GELU(module.approximate),
    nn.GRU: _recurrent(layers.GRU),
    nn.LSTM: _recurrent(layers.LSTM),
    nn.LayerNorm: lambda module: layers.LayerNorm(
        module.normalized_shape, module.eps, module.elementwise_affine, module.bias is not None
    ),
    nn.Linear: lambda module: layers.Linear(module.in_features, module.out_features, module.bias is not None, rng=0),
    nn.MaxPool2d: lambda module: layers.MaxPool2d(
        **_same(module, "kernel_size", "stride", "padding", "dilation", "return_indices", "ceil_mode")
    ),
    nn.ReLU: lambda module: layers.ReLU(),
    nn.Sigmoid: lambda module: layers.Sigmoid(),
    nn.Tanh: lambda module: layers.Tanh(),
    modules.Gather: _gather,
    modules.LastStep: lambda module: layers.LastStep(module.bidirectional),
    modules.Normalize: lambda module: layers.Normalize(_array(module.mean), _array(module.std)),
}


def read(module: nn.Module) -> Sequential:
    """The layers of a module (`numbanet.io.from_torch`)."""
    if not isinstance(module, nn.Module):
        raise TypeError(f"from_torch takes a torch.nn.Module, not {type(module).__name__}")
    made: list[tuple[nn.Module, Layer]] = []
    model = Sequential(list(_layers(module, "", made)))
    names = {id(tensor): name for name, tensor, _ in model.named()}
    tree, frozen = Tree(model), []
    first: dict[int, str] = {}  # by id of a part, the name of the first tensor that has its values
    for source, layer in made:
        for own, part in _parts(source, layer):
            name = names[id(own)]
            if id(part) in first:
                tree.share(name, first[id(part)])
                continue
            first[id(part)] = name
            if isinstance(part, nn.Parameter) and not part.requires_grad:
                frozen.append(name)
    tree.freeze(frozen)
    return model


def _layers(module: nn.Module, path: str, made: list[tuple[nn.Module, Layer]]) -> Iterator[Layer]:
    """Yield the layers of a module, and append (module, layer) to `made`; a nested container is one `Sequential`."""
    if _is_chain(module):
        for name, child in vars(module)["_modules"].items():  # named_children has a module that is used twice once
            found = list(_layers(child, f"{path}.{name}" if path else name, made))
            yield from [Sequential(found)] if _is_chain(child) else found
    elif not any(_is(module, kind) for kind in LEFT_OUT):
        layer = _layer(module, path)
        made.append((module, layer))
        yield layer


def _is_chain(module: nn.Module) -> bool:
    """Return True if a module is a container whose modules run one after the other; a `ModuleList`, which does not say in which
    order they run, is taken for one.
    """
    return any(_is(module, kind) for kind in (nn.Sequential, modules.Chain, nn.ModuleList))


def _is(module: nn.Module, kind: type[nn.Module]) -> bool:
    """Return True if a module computes what its class `kind` does: nothing is overridden, hooked or parametrized."""
    own = vars(module)
    hooked = own["_forward_hooks"] or own["_forward_pre_hooks"] or "parametrizations" in own["_modules"]
    return isinstance(module, kind) and type(module).forward is kind.forward and not hooked and "forward" not in own


def _layer(module: nn.Module, path: str) -> Layer:
    """Return the layer of a module, with its values."""
    where = f"module {path or 'itself'} ({type(module).__name__})"
    reader = _reader(module)
    if reader is None:
        raise TypeError(f"{where} {_refusal(module)}")
    try:
        layer = reader(module)
    except (ValueError, TypeError) as error:
        raise type(error)(f"{where}: {error}") from None
    for tensor, part in _parts(module, layer):
        tensor.assign(tensor.device.upload(_array(part).astype(tensor.dtype)))
    return layer


def _reader(module: nn.Module) -> Callable[[Any], Layer] | None:
    """Return the function that makes the layer of a module; None if it has no counterpart."""
    return next((reader for kind, reader in READERS.items() if _is(module, kind)), None)


def _refusal(module: nn.Module) -> str:
    """Return why a module cannot be read, and what to do."""
    inside = [*module.named_modules()][1:]
    if inside and not isinstance(module, tuple(READERS)):
        alone = ((name, one) for name, one in inside if not [*one.children()] and not isinstance(one, LEFT_OUT))
        name, first = next(((name, one) for name, one in alone if not _reader(one)), ("", None))
        said = "computes what its forward says, or its hooks, which cannot be read: write it as a Sequential of its modules"
        return said if first is None else f"{said}; its module {name} ({type(first).__name__}) has no counterpart here"
    known = {kind.__name__ for kind in (*READERS, *LEFT_OUT) if kind.__module__.startswith("torch.")}
    return (
        f"has no counterpart here, only {', '.join(sorted(known))} and Sequential; write a numbanet.Layer for it, and put the "
        "modules before and after it through from_torch"
    )


def _parts(module: nn.Module, layer: Layer) -> Iterator[tuple[Tensor, Any]]:
    """Yield (tensor, part of the module with its name) for each parameter and buffer of a layer."""
    parts = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    for name, tensor, _ in layer.named():
        yield tensor, parts[name]
