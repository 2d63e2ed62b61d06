"""The reference: a page for each public name, which is a name in `__all__` of numbanet or of one of its packages."""

import importlib
import inspect
import pkgutil
import re
import types

import numbanet
import numbanet_kernels.ptx

from . import docstrings, put

INTERNAL = ("numbanet.cli", "numbanet.bench", "numbanet.__main__")  # commands have a page of their own


def modules():
    """The modules with public names: numbanet first, then the others by name, at last the machine that runs kernels."""
    found = [numbanet]
    for part in pkgutil.walk_packages(numbanet.__path__, "numbanet."):
        if not part.name.startswith(INTERNAL):
            try:
                module = importlib.import_module(part.name)
            except ImportError as missing:  # of an optional package, such as torch; the module has no public names
                if (missing.name or "").startswith("numbanet"):
                    raise
                continue
            if hasattr(module, "__all__") or module is numbanet.ops:
                found.append(module)
    return [*found, numbanet_kernels.ptx]


def public(module):
    """The public names of a module: its `__all__`; for `ops`, which has none, the functions of its modules."""
    if module is numbanet.ops:
        return [
            name
            for name, value in sorted(vars(module).items())
            if not name.startswith("_") and callable(value) and getattr(value, "__module__", "").startswith("numbanet.ops")
        ]
    return list(module.__all__)


def pages():
    """{full name: (module, name)} of the pages. What several modules export by one name has one page, by the first of them."""
    found, seen = {}, set()
    for module in modules():
        for name in public(module):
            value = getattr(module, name)
            if not isinstance(value, types.ModuleType) and (name, id(value)) not in seen:
                seen.add((name, id(value)))
                found[f"{module.__name__}.{name}"] = (module, name)
    return found


def directive(value):
    """The directive of autodoc that describes a value, with its options."""
    if inspect.isclass(value):
        return "autoclass", ["   :members:", "   :inherited-members: object, tuple, dict, str, Exception, BaseEstimator"]
    if callable(value) and hasattr(value, "__name__"):
        return "autofunction", []
    return "autodata", []


def write(folder):
    """Write the pages, and the page that lists them; remove those of names that are gone."""
    known = pages()
    for full, (module, name) in known.items():
        kind, options = directive(getattr(module, name))
        lines = [full, "=" * len(full), "", f".. currentmodule:: {module.__name__}", "", f".. {kind}:: {full}", *options]
        put(folder / f"{full}.rst", "\n".join(lines) + "\n")
    put(folder / "index.md", index(known))
    for path in set(folder.glob("*.rst")) - {folder / f"{full}.rst" for full in known} - {folder / "commands.rst"}:
        path.unlink()


def index(known):
    """The page that lists the names, by module."""
    names = {(name, id(getattr(module, name))): full for full, (module, name) in known.items()}
    lines = ["# Reference", "", "Every public name has a page. [Commands](commands.rst) are what `numbanet` does in a shell."]
    for module in modules():
        lines += ["", f"## `{module.__name__}`", "", plain(inspect.getdoc(module)), ""]
        for name in sorted(public(module), key=str.lower):
            value = getattr(module, name)
            if full := names.get((name, id(value))):
                lines.append(f"* [`{name}`]({full}.rst): {summary(value)}")
    return "\n".join([*lines, "", "```{toctree}", ":hidden:", "", *known, "```", ""])


def summary(value):
    """What a value is, in a line."""
    if inspect.isclass(value) or callable(value):
        return plain(inspect.getdoc(value) or "")
    return f"`{value!r}`" if len(repr(value)) < 80 else f"a {type(value).__name__}"


def plain(doc):
    """The first paragraph of a docstring, without what Markdown would read as marks, but code and emphasis."""
    parts = docstrings.EMPHASIS.split(" ".join(doc.split("\n\n")[0].split()))
    parts[::2] = (re.sub(r"([\\*_\[\]<>$|])", r"\\\1", part) for part in parts[::2])
    return "".join(parts)
