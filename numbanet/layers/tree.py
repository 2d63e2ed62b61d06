"""`Tree`: the layers of a model by their paths. Policies, costs, saving and summaries use it."""

from __future__ import annotations

import collections
import functools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any

from ..plans import DevicePlan, Plans, Site
from ..tensor import Tensor


def walk(root: Any, path: str = "", above: tuple[Any, ...] = ()) -> Iterator[tuple[str, Any]]:
    """Yield (path, layer) for `root` and all layers inside it, parents first; a layer that is used in two places appears twice.

    Raises
    ------
    ValueError
        If a layer contains itself.
    """
    if any(root is layer for layer in above):
        raise ValueError(f"{type(root).__name__} contains itself, at {path}")
    yield path, root
    for name, child in root.children():
        yield from walk(child, f"{path}.{name}" if path else name, (*above, root))


def among(kind: type, name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, object) for each object of class `kind`: `value`, or elements of a list, tuple or dict, by index or key."""
    if isinstance(value, kind):
        yield name, value
    elif isinstance(value, (list, tuple)):
        for i, part in enumerate(value):
            yield from among(kind, f"{name}.{i}", part)
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from among(kind, f"{name}.{key}", part)


def set_trained(tensor: Tensor, trained: bool) -> None:
    """Train a tensor, or freeze it."""
    tensor.requires_grad = trained


class Tree:
    """The layers and sites that a model has when the tree is made. If `current` becomes False, make a new tree.

    Attributes
    ----------
    root : Layer
        The model.
    layers : dict of str to Layer
        The layer at each path; the path of `root` is "".
    sites : dict of (Layer, str) to Site
        The site with each name of each layer; a layer that is used in several places has the sites of its first path.
    """

    def __init__(self, root: Any) -> None:
        self.root, self.layers = root, dict(walk(root))
        self._parts = _Parts(root)
        self.sites: dict[tuple[Any, str], Site] = {}
        self._cached: dict[int, tuple[Any, Any]] = {}  # (object, result of `cached`) by the id of the object
        counts: dict[str, int] = collections.Counter()
        for path, layer in self.layers.items():
            for site in layer.sites():
                if (layer, site.path) not in self.sites:
                    here = f"{path}.{site.path}" if path else site.path
                    self.sites[layer, site.path] = site._replace(path=here, number=counts[site.kind])
                    counts[site.kind] += 1

    def cached(self, key: Any, made: Callable[[], Any]) -> Any:
        """Return the result of made(), called once for the object `key`, until `renew` is called."""
        found = self._cached.get(id(key))
        if found is None:
            found = self._cached[id(key)] = key, made()
        return found[1]

    def renew(self) -> None:
        """Forget the results of `cached`."""
        self._cached.clear()

    @property
    def current(self) -> bool:
        """True if the model still consists of the same objects: layers, their attributes, and the arrays of their tensors."""
        return self._parts.same()

    def share(self, name: str, first: str) -> None:
        """Replace the tensor with the name `name` by the one with the name `first`, so that both are one object. Raise
        ValueError if a name is not that of a tensor.
        """
        tensors = {name: tensor for name, tensor, _ in self.root.named()}
        for given in (name, first):
            if given not in tensors:
                raise ValueError(f"{given} is not a tensor")
        layer, path, attribute = self.holder(name)
        place = f"{path}.{attribute}" if path else attribute
        setattr(layer, attribute, _replaced(getattr(layer, attribute), place, name, tensors[first]))

    def freeze(self, names: Iterable[str]) -> None:
        """Freeze the parameters with these names; raise KeyError if a name is unknown."""
        tensors = {name: tensor for name, tensor, _ in self.root.named()}
        for name in names:
            set_trained(tensors[name], False)

    @functools.cached_property
    def owners(self) -> dict[str, Any]:
        """Return a dict that maps the path of each site to its layer."""
        return {site.path: layer for (layer, _), site in self.sites.items()}

    @functools.cached_property
    def feeds(self) -> dict[Any, Any]:
        """Return a dict that maps a layer of a `Sequential` to the earlier layer whose outputs are its inputs. The layers
        between the two process each neuron independently.
        """
        found: dict[Any, Any] = {}
        for chain in self.layers.values():
            source = None
            for _, layer in chain.children() if chain.chain else ():
                if (layer, layer.output_site) in self.sites:
                    if source is not None:
                        found[layer] = source
                    source = layer
                elif not layer.passes_units:
                    source = None
        return found

    @functools.cached_property
    def _by_kind(self) -> dict[str, tuple[Site, ...]]:
        kinds: dict[str, list[Site]] = {}
        for site in self.sites.values():
            kinds.setdefault(site.kind, []).append(site)
        return {kind: tuple(sites) for kind, sites in kinds.items()}

    def droppable(self, kind: str = "output", answer: bool = False) -> tuple[Site, ...]:
        """Return the sites of the kind `kind` for which a policy makes plans. For the kinds "output" and "tiles", the last site
        is left out unless `answer` is True, because it computes the output of the model.
        """
        sites = self._by_kind.get(kind, ())
        return sites if answer or kind not in ("output", "tiles") else sites[:-1]

    @functools.cached_property
    def shared(self) -> frozenset[Tensor]:
        """The parameters and buffers that are used more than once (tied weights)."""
        uses = collections.Counter(tensor for _, tensor, _ in self.root.named())
        return frozenset(tensor for tensor, count in uses.items() if count > 1)

    def reads(self, plans: Plans, symbols: Any = None) -> dict[Tensor, DevicePlan]:
        """Return a dict that maps weights, except tied ones, to the part that a pass reads if it is not the whole weight."""
        return {weight: part for weight, part in self.root.reads(plans, symbols).items() if weight not in self.shared}

    def holder(self, name: str) -> tuple[Any, str, str]:
        """Return (layer, its path, attribute) of the tensor `name`: of "0.body.1.weight" the attribute "weight" of the layer
        "0.body.1", and of "0.weights.1", which is an element of a list, the attribute "weights" of the layer "0".
        """
        path = name.rpartition(".")[0]
        while path not in self.layers:
            path = path.rpartition(".")[0]
        return self.layers[path], path, name.removeprefix(f"{path}.").partition(".")[0]


def _replaced(value: Any, place: str, name: str, tensor: Tensor) -> Any:
    """Return a value, whose name is `place`, with `tensor` for the tensor `name` in it. Lists and dicts are changed, and tuples
    are made anew.
    """
    if isinstance(value, Tensor) and place == name:
        return tensor
    if not isinstance(value, (list, tuple, dict)) or not name.startswith(f"{place}."):
        return value
    keys = value if isinstance(value, dict) else range(len(value))
    parts = {key: _replaced(value[key], f"{place}.{key}", name, tensor) for key in keys}
    if isinstance(value, tuple):
        return tuple.__new__(type(value), parts.values())  # also of a class of named tuples
    for key, part in parts.items():
        value[key] = part
    return value


class _Parts:
    """The objects of which a model consists: attributes of its layers, without transient ones, and arrays of its tensors."""

    def __init__(self, model: Any) -> None:
        self._held: list[tuple[Any, tuple[str, ...], list]] = []  # (container, keys that are skipped, the other values)
        self._arrays = [(tensor, tensor.data) for _, tensor, _ in model.named()]
        for _, layer in walk(model):
            self._look(vars(layer), layer.transient)

    def _look(self, container: list | tuple | dict, skipped: tuple[str, ...] = ()) -> None:
        values = _values(container, skipped)
        self._held.append((container, skipped, values))
        for value in values:
            if isinstance(value, (list, tuple, dict)):
                self._look(value)

    def same(self) -> bool:
        """Return True if the model consists of the same objects as when `self` was made."""
        for container, skipped, then in self._held:
            now = container.values() if isinstance(container, dict) and not skipped else _values(container, skipped)
            if not same(now, then):
                return False
        return all([tensor.data is array for tensor, array in self._arrays])


def _values(container: list | tuple | dict, skipped: tuple[str, ...]) -> list:
    """Return the values in a container; if it is a dict, without the values of the keys `skipped`."""
    if not isinstance(container, dict):
        return list(container)
    return [value for key, value in container.items() if key not in skipped] if skipped else list(container.values())


def same(these: Collection[Any], those: Collection[Any]) -> bool:
    """Return True if two collections hold the same objects, in the same order."""
    return len(these) == len(those) and all(map(operator.is_, these, those))


def settings(layer: Any) -> list[Any]:
    """Return (name, value) of the attributes of a layer that are numbers, strings or None: a pass may depend on them."""
    return [(name, value) for name, value in vars(layer).items() if isinstance(value, (bool, int, float, str, type(None)))]
