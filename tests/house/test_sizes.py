"""How large files, functions and folders are: a reader sees a function at once, a file in one sitting, a folder at a glance."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOPS = [ROOT / name for name in ("numbanet", "numbanet_kernels", "bench", "datasets", "docs", "examples", "tests")]
FILE, FUNCTION, FOLDER = 400, 60, 22  # lines; lines from `def` to the end; Python files but __init__


def long_files(top):
    """(file, n of lines) of each file that is too long."""
    sizes = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in sorted(top.rglob("*.py"))}
    return [(path.relative_to(top.parent).as_posix(), size) for path, size in sizes.items() if size > FILE]


def statements(tree):
    """The statements of a syntax tree, those in others as well."""
    for node in ast.iter_child_nodes(tree):
        if not isinstance(node, ast.expr):
            yield node
            yield from statements(node)


def long_functions(top):
    """("file:line name", n of lines) of each function or method that is too long, in others as well."""
    return [
        (f"{path.relative_to(top.parent).as_posix()}:{node.lineno} {node.name}", size)
        for path in sorted(top.rglob("*.py"))
        for node in statements(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and (size := node.end_lineno - node.lineno + 1) > FUNCTION
    ]


def full_folders(top):
    """(folder, n of files) of each folder that holds too many."""
    folders = [path.parent for path in top.rglob("*.py") if path.stem != "__init__"]
    sizes = {folder: folders.count(folder) for folder in sorted(set(folders))}
    return [(folder.relative_to(top.parent).as_posix(), size) for folder, size in sizes.items() if size > FOLDER]


def listed(search):
    """What a search finds, one line each; the folders that it looks through are there."""
    assert all(any(top.rglob("*.py")) for top in TOPS)
    return "\n".join(f"{name}: {size}" for top in TOPS for name, size in search(top))


def test_no_file_is_too_long():
    found = listed(long_files)
    assert not found, found


@pytest.mark.slow
def test_no_function_is_too_long():
    found = listed(long_functions)
    assert not found, found


def test_no_folder_is_too_full():
    found = listed(full_folders)
    assert not found, found


def test_what_is_too_large_is_found(tmp_path):
    """And what is just small enough is not."""
    top, inner = tmp_path / "top", tmp_path / "top" / "inner"
    inner.mkdir(parents=True)
    for name, n in (("fits", FILE), ("long", FILE + 1)):
        (inner / f"{name}.py").write_text("pass\n" * n)
    body = "    pass\n" * (FUNCTION - 1)
    (top / "functions.py").write_text(
        f"@wraps\n@cached\ndef fits():\n{body}\ndef long():\n{body}    pass\nasync def waits():\n{body}    pass\n"
        f"class Own:\n    def method(self):\n        def inner():\n            pass\n{body.replace('    ', '        ')}"
        f"match Own:\n    case int():\n        def cased():\n{body.replace('    ', '            ')}            pass\n"
    )
    for folder, n in ((top, FOLDER - 1), (inner, FOLDER - 1)):
        (folder / "__init__.py").touch()
        for i in range(n):
            (folder / f"file{i}.py").touch()
    assert long_files(top) == [("top/inner/long.py", FILE + 1)]
    names = [(name.partition(" ")[2], size) for name, size in long_functions(top)]
    assert names == [("long", FUNCTION + 1), ("waits", FUNCTION + 1), ("method", FUNCTION + 2), ("cased", FUNCTION + 1)]
    assert full_folders(top) == [("top/inner", FOLDER + 1)]
