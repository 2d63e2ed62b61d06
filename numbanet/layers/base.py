"""Layer: the contract of all layers.

A subclass needs only `__call__`, which maps a tensor to a tensor. Tensors and layers that are its attributes, or elements of a
list that is an attribute, are trained, moved between devices, saved under PyTorch's names, and can have dropout. It may also
define:

    forward(flow, context)  maps a `Flow` to a `Flow`, so that the layer can take compact activations; by default `__call__` is
                            called with the dense activation
    sites()                 returns the tensors that dropout may sparsify
    cost(spec, plans)       returns the output shape, FLOPs and bytes of a pass, and refuses wrong input shapes before training
                            starts. By default one batch is run through the layer, to learn its output shape and which layers
                            it calls
    symbols                 is the number of different integers that the layer takes; a layer that calls an `Embedding` sets it
    reads(plans, symbols)   returns the part of each weight that a pass reads, so that the update of the rest may be deferred
    config()                returns the arguments of the constructor, from which a saved layer is made again; by default these
                            are the attributes of the same names
    commutes(plan)          returns True if the layer may be applied before the pending factors of a plan
    fuse_with(following)    returns a function that computes this layer and the next one together; it may have a `fuse_with`
                            itself, for the layer after those
    unitwise                is True if each neuron or channel is processed by itself, so that some may be removed
"""

from __future__ import annotations

import inspect
import weakref
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import numpy as np

from ..arguments import type_name
from ..autograd import no_grad
from ..device import Device, device
from ..plans import DevicePlan, Plan, Plans, Site
from ..tensor import Tensor
from .context import Around, Context, around, entering
from .flow import NO_TAGS, ActivationSpec, Cost, Flow
from .tree import among, set_trained, walk

NOT_SAVED = ("rng", "device")  # arguments of constructors that are not saved: the source of the initial weights, and the device


class Layer:
    """Base class of the layers. A subclass defines `__call__` or `forward`; everything else has a default."""

    buffers: ClassVar[tuple[str, ...]] = ()  # names of tensors that are saved and moved, but not trained
    units: ClassVar[tuple[str, ...]] = ()  # names of tensors with one entry per unit, or per unit and pixel
    recordable: ClassVar[bool] = False  # True if steps may be recorded (`records`)
    # names of attributes that passes set, such as caches; they are None in copies and pickles
    transient: ClassVar[tuple[str, ...]] = ()
    unitwise: ClassVar[bool] = False  # True if each unit is processed by itself (`passes_units`)
    output_site: str = "output"  # name of the site of the units in the layer's output
    chain: ClassVar[bool] = False  # True if the layer is the composition of its children and nothing else
    seed: int | None = None  # seed of the initial weights, if the layer was made without `rng`
    # `forward` of the parent class, which `super().__call__` runs if a subclass overrides `__call__`
    _parents: ClassVar[Callable[..., Flow] | None] = None

    def __init_subclass__(cls, **options: Any) -> None:
        """A subclass that overrides `__call__` or `forward` may compute a different function, so it does not inherit
        `fuse_with` and `reads`, but must define them itself. If it overrides only `__call__`, its `forward` calls `__call__`.
        """
        super().__init_subclass__(**options)
        own = vars(cls)
        if "forward" in own and not _takes_flow(own["forward"]):
            raise TypeError(
                f"{cls.__name__}: forward takes (flow, context), unlike PyTorch's; a method that maps a tensor to a tensor is "
                "called __call__(self, x) here, and the layer needs no forward then"
            )
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
        """The number of different integers that the layer takes; inputs must be below it. None if the layer takes floats."""
        return None

    @property
    def padding(self) -> int | None:
        """The integer that pads sequences; None if there is none."""
        return None

    def __call__(self, x: Tensor, context: Context | Mapping[Any, Plan] | None = None) -> Tensor:
        """Return the dense output for the tensor x; `context`, or a mapping of plans, determines which parts are computed."""
        return (self._parents or self.forward)(*entering(self, x, context)).dense()

    def forward(self, flow: Flow, context: Context) -> Flow:
        """Return the output flow for an input flow; by default, `__call__` is called with the dense activation."""
        with around.within(Around(context, flow.tags)):
            return flow.with_(_tensor_of(self, self(flow.dense())))

    def sites(self) -> tuple[Site, ...]:
        """Return the sites of this layer, without those of its children. The path of a site is here its name in the layer."""
        return ()

    def cost(self, spec: ActivationSpec, plans: Plans) -> tuple[Cost, ActivationSpec]:
        """Return the cost of a pass under `plans`, and the specification of the output; raise ValueError if the layer cannot
        take an input with the specification `spec`.

        By default the cost is the sum of the costs of the layers that this layer calls. One batch of zeros is passed through
        the layer to find the called layers and the output shape.
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
        """Return a dict that maps each weight of which a pass reads only a part to that part. `symbols` are the integer inputs
        of the layer, if they are known. By default the dict is empty, because `__call__` may read every weight completely.
        """
        return {}

    def commutes(self, plan: Plan) -> bool:
        """Return True if the layer may be applied before the factors that `plan` leaves pending (`Flow.pending`)."""
        return False

    def fuse_with(self, following: Layer) -> Callable[[Flow, Context], Flow] | None:
        """Return a function that computes this layer and the following one together; None if they are not fused. If the
        function has a `fuse_with` itself, it may be fused with the layer after both.
        """
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), **dict.fromkeys(self.transient)}

    def __sklearn_clone__(self) -> Layer:
        """Return the layer itself: scikit-learn clones the layers of a list one by one, which would part what they share."""
        return self

    @property
    def records(self) -> bool:
        """True if steps whose plans have equal `kind` always issue the same launches, so that they may be recorded. Each class
        must set `recordable = True` itself: a subclass may issue other launches.
        """
        return bool(vars(type(self)).get("recordable", False))

    def acts_as(self, *kinds: type[Layer]) -> bool:
        """Return True if the layer is an instance of one of `kinds`, and no subclass overrides `forward` or `__call__`."""
        own = type(self)
        return any(isinstance(self, kind) and own.forward is kind.forward and own.__call__ is kind.__call__ for kind in kinds)

    @property
    def passes_units(self) -> bool:
        """True if the layer processes each neuron or channel independently. It is so if a class sets `unitwise = True`, and for
        its subclasses that override neither `forward` nor `__call__`.
        """
        for kind in type(self).__mro__:
            if "unitwise" in vars(kind):
                return vars(kind)["unitwise"]
            if "forward" in vars(kind) or "__call__" in vars(kind):
                return False
        return False

    # --- initial weights ----------------------------------------------------------------------------------------------
    def generator(self, rng: np.random.Generator | int | None) -> np.random.Generator:
        """Return the generator for initial weights. If `rng` is None, a seed is drawn and stored in the layer for `redraw`."""
        if rng is None:
            drawn: Any = np.random.SeedSequence().entropy
            rng = self.seed = drawn
        return np.random.default_rng(rng)

    def initial(self, rng: np.random.Generator) -> dict[str, np.ndarray]:
        """Return a dict that maps the name of each attribute with random initial values to new initial values."""
        return {}

    def redraw(self, rng: np.random.Generator) -> None:
        """Draw new initial weights here and in children, for layers that were made without `rng` and not changed since."""
        for _, layer in self.children():
            layer.redraw(rng)
        if self.seed is None:
            return
        first = self.initial(np.random.default_rng(self.seed))
        if all(
            np.array_equal(getattr(self, name).numpy(), values.astype(getattr(self, name).dtype))
            for name, values in first.items()
        ):
            for name, values in self.initial(rng).items():
                tensor = getattr(self, name)
                tensor.assign(tensor.device.upload(values.astype(tensor.dtype)))
            self.seed = None

    # --- contents -----------------------------------------------------------------------------------------------------
    def children(self) -> Iterator[tuple[str, Layer]]:
        """Yield (name, layer) for each child; children are attributes that are layers, or lists, tuples or dicts of layers."""
        for name, value in vars(self).items():
            yield from among(Layer, name, value)

    def named(self) -> Iterator[tuple[str, Tensor, bool]]:
        """Yield (name, tensor, whether it is trained) for each parameter and buffer of this layer, then of its children."""
        for attribute, value in vars(self).items():
            for name, tensor in among(Tensor, attribute, value):
                yield name, tensor, attribute not in self.buffers
        for path, child in self.children():
            for name, tensor, trained in child.named():
                yield f"{path}.{name}", tensor, trained

    def by_unit(self) -> list[Tensor]:
        """Return the tensors of this layer that have an entry per unit (`units`)."""
        return [tensor for name in self.units if (tensor := getattr(self, name)) is not None]

    def parameters(self) -> Iterator[Tensor]:
        """Return an iterator over the trainable tensors, each of them once."""
        return iter({id(tensor): tensor for _, tensor, trained in self.named() if trained}.values())

    def config(self) -> dict[str, Any]:
        """Return the arguments with which the constructor makes a layer like this one, except for the values of its tensors. By
        default they are the attributes of the same names.

        Raises
        ------
        TypeError
            If an argument has no attribute of its name, or the constructor takes *args.
        """
        config = {}
        for name, parameter in inspect.signature(type(self)).parameters.items():
            if parameter.kind == parameter.VAR_POSITIONAL:
                raise TypeError(f"{self!r} takes *{name}, whose values have no names: make it one list argument")
            if parameter.kind == parameter.VAR_KEYWORD or name in NOT_SAVED:
                continue
            if not hasattr(self, name):
                raise TypeError(
                    f"{self!r} has no attribute {name!r}, so its constructor's arguments are unknown: set it in __init__, "
                    "or define config(), which returns the arguments"
                )
            config[name] = getattr(self, name)
        return config

    @classmethod
    def shapes(cls, config: Mapping[str, Any]) -> tuple[tuple[str, tuple[int, ...]], ...]:
        """Return (name, shape) of each tensor of a layer with the arguments `config`, so that a damaged file is refused before
        its tensors are allocated."""
        return ()

    def requires_grad_(self, requires_grad: bool = True) -> Layer:
        """Train all parameters of the layer, or freeze them, as in PyTorch, and return the layer. No gradient, weight decay or
        momentum changes a frozen parameter. Freezing also deletes a parameter's gradient.

        Saving and loading preserve the setting. Buffers, such as the running means of `BatchNorm1d`, still change.
        """
        for parameter in self.parameters():
            set_trained(parameter, bool(requires_grad))
            if not requires_grad:
                parameter.zero_grad()
        return self

    def state_dict(self) -> dict[str, np.ndarray]:
        """Return a dict that maps PyTorch's names of all parameters and buffers to copies of their values."""
        return {name: np.array(tensor.numpy()) for name, tensor, _ in self.named()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Set all parameters and buffers. `state` maps each name in `state_dict()` to an array, or to anything that NumPy
        reads, such as PyTorch's tensors.

        Raises
        ------
        ValueError
            If a name is missing or unknown, a shape differs, or indices form no valid structure; nothing is changed then.
        TypeError
            If an entry is not an array of numbers.
        """
        tensors, arrays = {name: tensor for name, tensor, _ in self.named()}, {}
        missing, unknown = tensors.keys() - state.keys(), state.keys() - tensors.keys()
        for problem, names in (("lacks", missing), ("has unknown entries:", unknown)):
            if names:
                raise ValueError(f"load_state_dict: the state {problem} {', '.join(sorted(names))}")
        for name, tensor in tensors.items():
            value = state[name]
            value = value.detach() if hasattr(value, "detach") else value  # PyTorch's parameters require gradients
            try:
                arrays[name] = np.asarray(value).astype(tensor.dtype, order="C")
            except (TypeError, ValueError) as error:
                raise TypeError(f"load_state_dict: {name} is not an array of numbers ({error})") from error
            if tensor.dtype != np.float32 and not np.array_equal(arrays[name], value):
                raise ValueError(f"load_state_dict: {name} has numbers that are no {tensor.dtype}")
            if arrays[name].shape != tensor.shape:
                raise ValueError(f"load_state_dict: {name} has shape {arrays[name].shape}, the layer's is {tensor.shape}")
        self.check_state({tensor: arrays[name] for name, tensor in tensors.items()})
        for name, tensor in tensors.items():
            tensor.assign(tensor.device.upload(arrays[name]))

    def check_state(self, arrays: Mapping[Tensor, np.ndarray]) -> None:
        """Raise ValueError unless `arrays`, which have the right shapes, are valid values of the layer's tensors."""
        for _, child in self.children():
            child.check_state(arrays)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def only(layer: str, out: str, **given: tuple[Any, Any]) -> None:
    """Raise ValueError if an argument of PyTorch has an unsupported value. Arguments are given as name=(value, supported
    value); the message ends with `out`, which says what to do instead.
    """
    for name, (value, supported) in given.items():
        if value != supported:
            raise ValueError(f"{layer}: {name}={value!r} is not supported, only {name}={supported!r}: {out}")


def to(layer: Layer, where: str | Device) -> None:
    """Move the parameters and buffers of a layer to a device, in place, and delete their gradients."""
    for _, tensor, _ in layer.named():
        tensor.move(device(where))


_trials: weakref.WeakKeyDictionary[Layer, dict[tuple, tuple]] = weakref.WeakKeyDictionary()


def _takes_flow(forward: Any) -> bool:
    """Return True if a method can be called as forward(flow, context)."""
    try:
        inspect.signature(forward).bind(None, None, None)
    except TypeError:
        return False
    except ValueError:  # the signature is unknown
        return True
    return True


def trial(layer: Layer, shape: tuple[int | None, ...]) -> tuple[list[tuple[Layer, tuple[int, ...]]], tuple[int, ...]]:
    """Pass a batch of zeros of shape `shape` through a layer. Return (calls, output shape); `calls` lists (called layer, shape
    of its input) for each layer that this layer calls. Raise ValueError if the layer raises an exception. The result is cached
    for the input shape and the shapes of the layer's tensors, as long as the called layers exist: they may be the layer itself,
    which the cache must not keep alive.
    """
    tensors = [tensor for _, tensor, _ in layer.named()]
    key, known = (shape, tuple(tensor.shape for tensor in tensors)), _trials.setdefault(layer, {})
    found, out = known.get(key, ((), None))
    calls = [(called, given) for ref, given in found if (called := ref()) is not None]
    if out is None or len(calls) < len(found):
        dev, calls = tensors[0].device if tensors else device("cpu"), list[tuple[Layer, tuple[int, ...]]]()
        x = np.zeros([n or 1 for n in shape], np.int32 if layer.symbols else np.float32)
        try:
            with no_grad(), dev.session():
                out = _run(layer, Tensor.wrap(dev.upload(x), dev), calls)
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise ValueError(f"{layer!r}: it cannot take a batch of shape {x.shape}: {what}") from error
        known[key] = [(weakref.ref(called), given) for called, given in calls], out
    return calls, out


def _tensor_of(layer: Layer, y: Any) -> Tensor:
    """Return y, which a layer's `__call__` returned. Raise TypeError if y is no tensor: gradients pass only through tensors."""
    if not isinstance(y, Tensor):
        raise TypeError(
            f"{layer!r}: __call__ must return a Tensor, made by tensors' methods or numbanet.ops, not {type_name(y)}"
        )
    return y


def _run(layer: Layer, x: Tensor, calls: list[tuple[Layer, tuple[int, ...]]]) -> tuple[int, ...]:
    """Pass zeros through a layer, and return its output shape; append (layer, input shape) of each called layer to `calls`."""
    context = Context(x.device)
    if type(layer).forward is Layer.forward:
        with around.within(Around(context, NO_TAGS, calls)):
            return tuple(_tensor_of(layer, layer(x)).shape)
    inside = False

    def noted(inner: Layer, forward: Callable[..., Flow]) -> Callable[..., Flow]:
        def note(flow: Flow, *given: Any, **options: Any) -> Flow:
            nonlocal inside
            if inside:  # the caller is itself in the list, so its calls are not listed
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
