"""Layer: the contract of all layers.

A layer of one's own is whole with `__call__`, which maps a tensor to a tensor. Layers that it holds, alone or in lists, and its
tensors train, move, are saved under PyTorch's names, and take part in dropout. What else it may say:

    forward(flow, context)  how it takes compact activations; by default it is called with the dense one
    sites()                 places that dropout may thin out
    cost(spec, plans)       shapes, FLOPs and bytes; shapes that do not fit are refused here, before training starts. By default
                            one batch is run through it, to see what comes out and which layers it calls
    reads(plans, symbols)   what of its weights a pass reads, so that updates may leave the rest for later
    config()                the arguments of its constructor, by which it is saved; by default attributes of the same names
    commutes(plan)          whether it may act before what is pending is applied
    fuse_with(following)    fusion with the next layer
    unitwise                whether each neuron or channel passes through it by itself, so that some may leave
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from ..autograd import no_grad
from ..device import Device, device
from ..plans import DevicePlan, Plan, Plans, Site
from ..tensor import Tensor
from .context import Around, Context, around, entering
from .flow import NO_TAGS, ActivationSpec, Cost, Flow
from .tree import walk

NOT_SAVED = ("rng", "device")  # arguments that say where initial weights come from, and where they live


class Layer:
    """Base of the layers. A subclass defines `__call__` or `forward`; all else has a default."""

    buffers: ClassVar[tuple[str, ...]] = ()  # names of tensors that are saved and moved, but not trained
    units: ClassVar[tuple[str, ...]] = ()  # names of tensors that have an entry, or as many as pixels, for each of its units
    recordable: ClassVar[bool] = False  # see `records`
    unitwise: ClassVar[bool] = False  # see `passes_units`
    chain: ClassVar[bool] = False  # whether it is its children, one after the other, and nothing else
    seed: int | None = None  # of the initial weights, where the layer was made without `rng`
    _parents: ClassVar[Callable[..., Flow] | None] = None  # what `super().__call__` means, where that is not `forward`

    def __init_subclass__(cls, **options: Any) -> None:
        """What a parent says of its own `forward` does not hold of a class that acts in another way: it is not fused, nor are
        parts of updates left for later, unless the class says so again. Where it defines `__call__` alone, that is what it
        does in a model, too."""
        super().__init_subclass__(**options)
        own = vars(cls)
        if "forward" in own:
            cls._parents = None
        elif "__call__" in own and cls.forward is not Layer.forward:
            cls._parents = cls.forward
            cls.forward = Layer.forward  # type: ignore[method-assign]
        if "forward" in own or "__call__" in own:
            for name in {"fuse_with", "reads"} - own.keys():
                setattr(cls, name, getattr(Layer, name))

    @property
    def symbols(self) -> int | None:
        """It takes integers below this; None: numbers."""
        return None

    @property
    def padding(self) -> int | None:
        """Which of the integers fills up sequences; None: none does."""
        return None

    def __call__(self, x: Tensor, context: Context | Mapping[Any, Plan] | None = None) -> Tensor:
        """The output for a tensor, dense; `context`, or the plans of one, says what is kept."""
        return (self._parents or self.forward)(*entering(self, x, context)).dense()

    def forward(self, flow: Flow, context: Context) -> Flow:
        """What the layer makes of what comes to it."""
        with around.within(Around(context, flow.tags)):
            return flow.with_(self(flow.dense()))

    def sites(self) -> tuple[Site, ...]:
        """The places of this layer alone that dropout may thin out, their paths its own names."""
        return ()

    def cost(self, spec: ActivationSpec, plans: Plans) -> tuple[Cost, ActivationSpec]:
        """What a pass under these plans costs, and what comes out; ValueError where the layer cannot take what comes.

        By default the layers that it calls cost what they do, which is found, as is the shape of what comes out, by running one
        batch of zeros through it.
        """
        if None in spec.shape[1:]:
            return Cost(), ActivationSpec((spec.shape[0], None), None, True)
        total, (calls, shape) = Cost(), trial(self, spec.shape)
        for i, (layer, given) in enumerate(calls):
            total = total.plus(layer.cost(ActivationSpec(given, None, spec.differentiable or i > 0), plans)[0])
        return total, ActivationSpec(
            (spec.shape[0], *shape[1:]), None, spec.differentiable or next(self.parameters(), None) is not None
        )

    def reads(self, plans: Plans, symbols: np.ndarray | None = None) -> dict[Tensor, DevicePlan]:
        """By weight, the part that a pass reads, for those of which it does not read all; symbols are the integers that come to
        the layer, where they are known. By default all is read: what `__call__` does with inner weights is not known."""
        return {}

    def commutes(self, plan: Plan) -> bool:
        """Whether the layer may act before what this plan leaves pending is applied."""
        return False

    def fuse_with(self, following: Layer) -> Callable[[Flow, Context], Flow] | None:
        """This layer and the following one as one; None: they are not fused."""
        return None

    @property
    def records(self) -> bool:
        """Whether equal kinds of plans always mean equal launches, so that passes may be recorded. A class says so for itself
        alone (`recordable = True`): a subclass may do something else."""
        return bool(vars(type(self)).get("recordable", False))

    def acts_as(self, *kinds: type[Layer]) -> bool:
        """Whether it does what one of these classes does: it is of that class, and defines neither `__call__` nor `forward`
        anew."""
        own = type(self)
        return any(isinstance(self, kind) and own.forward is kind.forward and own.__call__ is kind.__call__ for kind in kinds)

    @property
    def passes_units(self) -> bool:
        """Whether each neuron or channel passes through the layer by itself: a class says so (`unitwise = True`), for itself
        and for subclasses that do not define anew what it does."""
        for kind in type(self).__mro__:
            if "unitwise" in vars(kind):
                return vars(kind)["unitwise"]
            if "forward" in vars(kind) or "__call__" in vars(kind):
                return False
        return False

    # --- initial weights ----------------------------------------------------------------------------------------------
    def generator(self, rng: np.random.Generator | int | None) -> np.random.Generator:
        """Where a constructor draws from: what it is given, or a seed that the layer keeps (`redraw`)."""
        if rng is None:
            drawn: Any = np.random.SeedSequence().entropy
            rng = self.seed = drawn
        return np.random.default_rng(rng)

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Initial values of the tensors that are drawn, by their attributes."""
        return {}

    def redraw(self, rng: np.random.Generator) -> None:
        """Draw initial weights anew, if the layer was made without `rng` and they are still those that it drew then: what was
        trained or loaded stays. So do the layers that it holds."""
        for _, layer in self.children():
            layer.redraw(rng)
        if self.seed is None:
            return
        own = self.initial(np.random.default_rng(self.seed))
        if all(
            np.array_equal(getattr(self, name).numpy(), values.astype(getattr(self, name).dtype))
            for name, values in own.items()
        ):
            for name, values in self.initial(rng).items():
                tensor = getattr(self, name)
                tensor.assign(tensor.device.upload(values.astype(tensor.dtype)))
            self.seed = None

    # --- what it is made of -------------------------------------------------------------------------------------------
    def children(self) -> Iterator[tuple[str, Layer]]:
        """(name, layer) of those that it holds: its attributes that are layers, or lists, tuples or dicts of them."""
        for name, value in vars(self).items():
            yield from _among(Layer, name, value)

    def named(self) -> Iterator[tuple[str, Tensor, bool]]:
        """(name, tensor, whether it is trained) of each parameter and buffer, first its own, then its children's."""
        for attribute, value in vars(self).items():
            for name, tensor in _among(Tensor, attribute, value):
                yield name, tensor, attribute not in self.buffers
        for path, child in self.children():
            for name, tensor, trained in child.named():
                yield f"{path}.{name}", tensor, trained

    def parameters(self) -> Iterator[Tensor]:
        """The tensors that training changes, each once."""
        return iter({id(tensor): tensor for _, tensor, trained in self.named() if trained}.values())

    def config(self) -> dict[str, Any]:
        """Arguments of the constructor that make such a layer, but for the values of its tensors. By default the attributes of
        their names.

        Raises
        ------
        TypeError
            If there is no attribute for one of them, or if there are any number of them.
        """
        found = {}
        for name, parameter in inspect.signature(type(self)).parameters.items():
            if parameter.kind == parameter.VAR_POSITIONAL:
                raise TypeError(f"{self!r} takes *{name}, which no name says: make it a list")
            if parameter.kind == parameter.VAR_KEYWORD or name in NOT_SAVED:
                continue
            if not hasattr(self, name):
                raise TypeError(
                    f"{self!r} has no attribute {name!r}, and so does not say how it was made: set it in __init__, "
                    "or define config(), which returns the arguments"
                )
            found[name] = getattr(self, name)
        return found

    @classmethod
    def shapes(cls, config: Mapping[str, Any]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """(name, shape) of tensors that a layer of this config has, so that a damaged file is refused before they are made."""
        return ()

    def requires_grad_(self, requires_grad: bool = True) -> Layer:
        """Train all parameters of the layer, or freeze them: until it is thawed nothing changes what is frozen, no gradient,
        weight decay or momentum. As PyTorch's; a gradient that it has is forgotten.

        Frozen parameters are saved and loaded as such. Buffers, such as the running means of `BatchNorm1d`, go on changing.

        Returns
        -------
        Layer
            Itself.
        """
        for parameter in self.parameters():
            parameter.requires_grad = bool(requires_grad)
            if not requires_grad:
                parameter.zero_grad()
        return self

    def state_dict(self) -> dict[str, np.ndarray]:
        """Copies of all parameters and buffers, by PyTorch's names."""
        return {name: np.array(tensor.numpy()) for name, tensor, _ in self.named()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set all parameters and buffers, from arrays or anything that NumPy reads, such as PyTorch's tensors.

        Raises
        ------
        ValueError
            If a name is missing or unknown, a shape is another one, or indices make no structure; nothing is changed then.
        TypeError
            If an entry is no array of numbers.
        """
        own, found = {name: tensor for name, tensor, _ in self.named()}, {}
        for problem, names in (("lacks", own.keys() - state.keys()), ("has unknown entries:", state.keys() - own.keys())):
            if names:
                raise ValueError(f"load_state_dict: the state {problem} {', '.join(sorted(names))}")
        for name, tensor in own.items():
            try:
                found[name] = np.asarray(state[name]).astype(tensor.dtype, order="C")
            except (TypeError, ValueError) as error:
                raise TypeError(f"load_state_dict: {name} is no array of numbers ({error})") from error
            if tensor.dtype != np.float32 and not np.array_equal(found[name], state[name]):
                raise ValueError(f"load_state_dict: {name} has numbers that are no {tensor.dtype}")
            if found[name].shape != tensor.shape:
                raise ValueError(f"load_state_dict: {name} has shape {found[name].shape}, the layer's is {tensor.shape}")
        self.check_state({tensor: found[name] for name, tensor in own.items()})
        for name, tensor in own.items():
            tensor.assign(tensor.device.upload(found[name]))

    def check_state(self, arrays: Mapping[Tensor, np.ndarray]) -> None:
        """ValueError unless the layer can take these arrays for its tensors, whose shapes they have."""
        for _, child in self.children():
            child.check_state(arrays)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _among(kind: type, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(name, thing) of what is of a kind: the value itself, or parts of a list, tuple or dict, numbered or by key."""
    if isinstance(value, kind):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            yield from _among(kind, f"{name}.{i}", part)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _among(kind, f"{name}.{key}", part)


def only(layer: str, out: str, **given: tuple[Any, Any]) -> None:
    """ValueError with the way out where an argument of PyTorch's, (its value, the one that is supported), has another value."""
    for name, (value, supported) in given.items():
        if value != supported:
            raise ValueError(f"{layer}: {name}={value!r} is not supported, only {name}={supported!r}: {out}")


def to(layer: Layer, where: str | Device) -> None:
    """Move a layer's parameters and buffers to a device, in place; their gradients are forgotten."""
    for _, tensor, _ in layer.named():
        tensor.move(device(where))


_trials: weakref.WeakKeyDictionary[Layer, dict[tuple, tuple]] = weakref.WeakKeyDictionary()


def trial(layer: Layer, shape: tuple[int | None, ...]) -> tuple[list[tuple[Layer, tuple[int, ...]]], tuple[int, ...]]:
    """(the layers that it calls, each with the shape of its input; the shape of its output) for a batch of zeros, found once
    for each shape and shapes of its tensors; ValueError where it cannot take them."""
    tensors = [tensor for _, tensor, _ in layer.named()]
    key, known = (shape, tuple(tensor.shape for tensor in tensors)), _trials.setdefault(layer, {})
    if key not in known:
        dev, calls = tensors[0].device if tensors else device("cpu"), list[tuple[Layer, tuple[int, ...]]]()
        x = np.zeros([n or 1 for n in shape], np.int32 if layer.symbols else np.float32)
        try:
            with no_grad(), dev.session():
                known[key] = calls, _run(layer, Tensor.wrap(dev.upload(x), dev), calls)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise ValueError(f"{layer!r}: it cannot take a batch of shape {x.shape}: {what}") from error
    return known[key]


def _run(layer: Layer, x: Tensor, calls: list[tuple[Layer, tuple[int, ...]]]) -> tuple[int, ...]:
    """The shape of a layer's output; what it calls, each with the shape of its input, is appended to `calls`."""
    context = Context(x.device)
    if type(layer).forward is Layer.forward:
        with around.within(Around(context, NO_TAGS, calls)):
            return tuple(layer(x).shape)
    inside = False

    def noted(inner: Layer, forward: Callable[..., Flow]) -> Callable[..., Flow]:
        def note(flow: Flow, *given: Any, **options: Any) -> Flow:
            nonlocal inside
            if inside:  # of a layer that was noted
                return forward(flow, *given, **options)
            calls.append((inner, tuple(flow.dense().shape)))
            inside = True
            try:
                return forward(flow, *given, **options)
            finally:
                inside = False

        return note

    held = {inner for path, inner in walk(layer) if path}
    try:
        for inner in held:
            vars(inner)["forward"] = noted(inner, inner.forward)
        return tuple(layer.forward(Flow(x), context).dense().shape)
    finally:
        for inner in held:
            vars(inner).pop("forward", None)
