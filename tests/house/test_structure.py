"""How the house is built: circles of imports, who stores to whose attributes, and how deep a training step lies."""
import ast
import sys
from pathlib import Path

import numpy as np

from numbanet import Net
from numbanet.training import optim

ROOT = Path(__file__).parents[2]
SOURCES = sorted((ROOT / "numbanet").rglob("*.py"))
CIRCLES = [{"numbanet.tensor", "numbanet.autograd", "numbanet.ops"}]  # methods on Tensor earn it


def module(path):
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path):
    """The modules of numbanet that a file imports anywhere, for types as well; but not what it finds when it is asked for."""
    tree, own = ast.parse(path.read_text(encoding="utf-8")), module(path).split(".")
    own = own if path.stem == "__init__" else own[:-1]
    known = {module(other) for other in SOURCES}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.level:
            base = ".".join([*own[:len(own) - node.level + 1], *([node.module] if node.module else [])])
            yield from {f"{base}.{alias.name}" if f"{base}.{alias.name}" in known else base for alias in node.names}


def circles(arrows):
    """Sets of modules of which each imports, through others, all of them (Tarjan 1972)."""
    numbers, low, stack, found = {}, {}, [], []

    def visit(name):
        numbers[name] = low[name] = len(numbers)
        stack.append(name)
        for other in arrows.get(name, ()):
            if other not in numbers:
                visit(other)
            if other in stack:
                low[name] = min(low[name], low[other])
        if low[name] == numbers[name]:
            group = set(stack[stack.index(name):])
            del stack[stack.index(name):]
            if len(group) > 1:
                found.append(group)

    for name in arrows:
        if name not in numbers:
            visit(name)
    return found


def test_no_import_goes_in_a_circle_but_tensor_autograd_ops():
    arrows = {module(path): set(imports(path)) - {module(path), "numbanet"} for path in SOURCES}
    for group in circles(arrows):
        folded = {name if not name.startswith("numbanet.ops") else "numbanet.ops" for name in group}
        assert folded in CIRCLES, group


def test_circles_are_found():
    assert circles({"a": {"b"}, "b": {"c"}, "c": {"a", "d"}, "d": {"e"}, "e": set()}) == [{"a", "b", "c"}]


def test_few_attributes_are_stored_from_outside_their_object():
    """An object changes itself; what is left is what Python, NumPy and scikit-learn ask for, and public attributes."""
    found = [f"{path.relative_to(ROOT)}:{node.lineno} {ast.unparse(node)}" for path in SOURCES
             for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
             if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
             and not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls"))]
    assert len(found) <= 20, "\n".join(found)


def test_few_frames_stand_between_fit_and_an_update(monkeypatch):
    depths = []

    def prepare(self, *given, original=optim.SGD.prepare):
        frame, names = sys._getframe(1), []
        while frame is not None and frame.f_code.co_name != "fit":
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        depths.append(names)
        return original(self, *given)

    monkeypatch.setattr(optim.SGD, "prepare", prepare)
    x = np.random.default_rng(0).standard_normal((40, 5))
    Net((4,), epochs=1, batch_size=20).fit(x, x[:, 0] > 0)
    assert len(depths) == 2 and all(names[0] == "step" and len(names) <= 4 for names in depths), depths
