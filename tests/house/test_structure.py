"""How the house is built: circles of imports, who stores to whose attributes, and how deep a training step lies."""

import ast
import sys
from pathlib import Path

import numpy as np
import pytest

from numbanet import Net
from numbanet.training import sgd
from numbanet.training.recorder import Recorder

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
            base = ".".join([*own[: len(own) - node.level + 1], *([node.module] if node.module else [])])
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
            group = set(stack[stack.index(name) :])
            del stack[stack.index(name) :]
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


def stores(source):
    """(line, what) of each attribute of another object that a file stores or deletes, by setattr and the like as well."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, (ast.Store, ast.Del)):
            changed = node.value
        elif isinstance(node, ast.Call) and getattr(node.func, "id", getattr(node.func, "attr", "")) in STORING and node.args:
            changed = node.args[0]
        else:
            continue
        if not (isinstance(changed, ast.Name) and changed.id in ("self", "cls")):
            yield node.lineno, ast.unparse(node)


STORING = "setattr", "delattr", "__setattr__", "__delattr__"


def test_few_attributes_are_stored_from_outside_their_object():
    """An object changes itself; what is left is what Python, NumPy and scikit-learn ask for, and public attributes."""
    found = [
        f"{path.relative_to(ROOT)}:{line} {what}" for path in SOURCES for line, what in stores(path.read_text(encoding="utf-8"))
    ]
    assert len(found) <= 20, "\n".join(found)


def test_stores_are_found():
    source = "a.b = 1\nself.c = 2\nfor x, y.d in z: pass\nsetattr(e, f, 3)\nobject.__setattr__(self, g, 4)\ndel h.i\nj.k += 5"
    assert [line for line, _ in sorted(stores(source))] == [1, 3, 4, 6, 7]


@pytest.mark.parametrize("recording, most", [(False, 4), (True, 6)])
def test_few_frames_stand_between_fit_and_an_update(monkeypatch, recording, most):
    """Of the estimator, the loop, the epoch, the step and the recorder of steps; before a step is recorded, also of its key and
    of passes and update as one."""
    depths = []
    if not recording:
        monkeypatch.setattr(Recorder, "possible", property(lambda self: False, lambda self, value: None), raising=False)

    def launch(self, *given, original=sgd.SGD.launch):
        frame, names = sys._getframe(1), []
        while frame is not None and frame.f_code.co_name != "fit":
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        depths.append(names)
        return original(self, *given)

    monkeypatch.setattr(sgd.SGD, "launch", launch)
    x = np.random.default_rng(0).standard_normal((40, 5))
    Net((4,), epochs=1, batch_size=20, device="cpu").fit(x, x[:, 0] > 0)
    steps = depths[:1] if recording else depths  # the second is recorded
    assert len(depths) >= 2 and all(names[-1] == "train" and len(names) <= most for names in steps), depths


def test_nothing_in_numbanet_knows_addresses():
    """Arrays are told apart by the device, and by the recorder of steps, which holds them."""
    known = "address", "data_ptr", "ctypes", "__array_interface__", "__cuda_array_interface__"
    found = [
        f"{path.relative_to(ROOT)}:{node.lineno} {node.attr}"
        for path in SOURCES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Attribute) and node.attr in known
    ]
    assert not found, "\n".join(found)
