"""The reference: a page for each public name, which is a name in `__all__` of numbanet or of one of its packages."""

import importlib
import inspect
import pkgutil
import types

import numbanet
import numbanet_kernels.ptx

from . import put

INTERNAL = ("numbanet.cli", "numbanet.bench", "numbanet.__main__")  # commands have a page of their own


def modules():
    """The modules with public names: numbanet first, then the others by name, at last the machine that runs kernels."""
    found = [numbanet]
    for part in pkgutil.walk_packages(numbanet.__path__, "numbanet."):
        if not part.name.startswith(INTERNAL):
            module = importlib.import_module(part.name)
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
    """{full name: (module, name)} of the pages. A name that several modules export has one page, by the first of them."""
    found, seen = {}, {}
    for module in modules():
        for name in public(module):
            value = getattr(module, name)
            if not isinstance(value, types.ModuleType):
                key = (name, id(value))
                if key not in seen:
                    seen[key] = f"{module.__name__}.{name}"
                    found[seen[key]] = (module, name)
    return found


def page_of(module, name):
    """The full name of the page that describes a name of a module; None for a module."""
    value = getattr(module, name)
    for full, (home, known) in pages().items():
        if known == name and getattr(home, name) is value:
            return full
    return None


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
    names = {(name, id(getattr(module, name))): full for full, (module, name) in known.items()}
    kept = {folder / "index.md", folder / "commands.rst"}
    for full, (module, name) in known.items():
        kind, options = directive(getattr(module, name))
        title = f"``{full}``"
        lines = [":orphan:", "", title, "=" * len(title), "", f".. currentmodule:: {module.__name__}", "", f".. {kind}:: {full}", *options]
        put(folder / f"{full}.rst", "\n".join(lines) + "\n")
        kept.add(folder / f"{full}.rst")
    lines = ["# Reference", "", "Every public name has a page. What a shell can do is on the page of the [commands](commands.rst)."]
    for module in modules():
        lines += ["", f"## `{module.__name__}`", "", inspect.getdoc(module).split("\n\n")[0].replace("\n", " "), ""]
        for name in sorted(public(module), key=str.lower):
            value = getattr(module, name)
            if full := names.get((name, id(value))):
                lines.append(f"* [`{name}`]({full}.rst): {summary(value)}")
    put(folder / "index.md", "\n".join(lines) + "\n\n```{toctree}\n:hidden:\n\ncommands\n```\n")
    for path in folder.glob("*.rst"):
        if path not in kept:
            path.unlink()


def summary(value):
    """The first sentence of a docstring, without what Markdown would read as marks."""
    if not (inspect.isclass(value) or callable(value)):
        return f"`{value!r}`" if len(repr(value)) < 80 else f"a {type(value).__name__}"
    text = " ".join((inspect.getdoc(value) or "").split("\n\n")[0].split())
    return "".join(f"\\{letter}" if letter in "\\*_[]<>$|" else letter for letter in text)
