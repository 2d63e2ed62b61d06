"""Who may import whom, by AST; what an import may load, by subprocess; the op tables, by signature."""

import ast
import inspect
import re
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from numbanet.device import NAMES, operations
from numbanet_kernels import cpu, cuda, emulated, tables
from numbanet_kernels.runtime import declare

ROOT = Path(__file__).parents[2]
SOURCES = [path for folder in ("numbanet", "numbanet_kernels", "datasets") for path in sorted((ROOT / folder).rglob("*.py"))]


FAMILIES = [
    path
    for path in sorted((ROOT / "numbanet_kernels/families").iterdir())  # files, and rooms: folders
    if path.stem not in ("__init__", "__pycache__")
]

ARROWS = {  # folder: those whose files it may import besides its own
    "numbanet_kernels": [f"numbanet_kernels.{name}" for name in ("families", "layouts", "host", "runtime")],  # the tables
    "numbanet_kernels.families": [f"numbanet_kernels.{name}" for name in ("blocks", "layouts", "host", "runtime")],
    "numbanet_kernels.blocks": ["numbanet_kernels.layouts", "numbanet_kernels.runtime"],
    "numbanet_kernels.host": ["numbanet_kernels.layouts", "numbanet_kernels.runtime"],
    "numbanet_kernels.layouts": [],
    "numbanet_kernels.runtime": ["numbanet_kernels.layouts", "numbanet_kernels.ptx"],
    "numbanet_kernels.card": ["numbanet_kernels.runtime", "numbanet_kernels.ptx"],
    "numbanet_kernels.ptx": [],
}

# each imports those before it
LEVELS = [
    "profile",
    "arguments",
    "initial",
    "html_page",
    "user_warnings",
    "datasets",
    "device",
    "emulation",
    "gradients",
    "tensor",
    "autograd",
    "plans",
    "ops",
    "losses",
    "layers",
    "flops",
    "parallel",
    "dropout",
    "training",
    "placement",
    "io",
    "estimators",
    "check",
    "challenge",
    "sparse",
    "plots",
    "demo",
    "cli",
    "__init__",
    "__main__",
]
NO_KERNELS = tuple(f"numbanet_kernels.{name}." for name in ("layouts", "runtime.interrupt", "runtime.context"))
BACK = {("tensor", "autograd"), ("tensor", "ops")}  # Tensor's methods are the operations, which need Tensor


def level(parts):
    """Which of LEVELS a module of numbanet belongs to; None for the package itself."""
    return LEVELS.index(parts[1]) if len(parts) > 1 and parts[1] in LEVELS else None


def upward(path, module):
    """Why a file of numbanet may not import a module of numbanet, or None."""
    here, there = (level(parts) for parts in (path.relative_to(ROOT).with_suffix("").parts, module.split(".")))
    if there is None or there <= here or (LEVELS[here], LEVELS[there]) in BACK:
        return None
    return f"{LEVELS[here]} does not import {LEVELS[there]}, which stands above it"


def imported(path):
    """(module, line) of every import in a file, relative ones resolved against its package."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            within = package[: len(package) - node.level + 1] if node.level else ()
            base = ".".join((*within, node.module or "")).strip(".")
            for alias in node.names:
                yield f"{base}.{alias.name}", node.lineno


def forbidden(path, module):
    """Why this file may not import that module, or None."""
    folder, top = path.relative_to(ROOT).parts[0], module.split(".")[0]
    if folder == "datasets":
        allowed = {"numpy", "sklearn", "numbanet", "datasets"} | set(sys.stdlib_module_names)
        if top not in allowed or (top == "numbanet" and not module.startswith("numbanet.datasets")):
            return "datasets knows numpy, scikit-learn and the standard library"
    if folder == "numbanet" and top == "numba":
        return "numbanet never imports numba"
    if folder == top == "numbanet" and (why := upward(path, module)):
        return why
    parts = path.relative_to(ROOT).with_suffix("").parts
    if folder == "numbanet" and top == "numbanet_kernels" and parts[1] not in ("device", "emulation", "cli"):
        return None if module.startswith(NO_KERNELS) else "numbanet reaches kernels only through device.py and emulation.py"
    if folder == "numbanet_kernels" and top in ("numbanet", "datasets"):
        return "kernels know nothing of numbanet"
    if folder == "numbanet_kernels" and top == "threadpoolctl" and path.name != "blas.py":
        return "BLAS is reached only through host/blas.py"
    if (own := family(module.split("."))) and own != family(parts) and inside(module.split(".")):
        return f"what others may use of {own} its __init__ names"
    here, there = room(parts[:-1]), room(module.split("."))
    if module.startswith("numba.cuda") and here not in ("numbanet_kernels.runtime", "numbanet_kernels.card"):
        return "numba.cuda is reached only in numbanet_kernels.runtime and numbanet_kernels.card"
    if here in ARROWS and there is not None and there not in (here, *ARROWS[here]):
        return f"{here} does not import {there}"
    return None


def room(parts):
    """The folder, of those in ARROWS, that holds a module; None if none does."""
    return next((name for n in (2, 1) if (name := ".".join(parts[:n])) in ARROWS), None)


def family(parts):
    """The family that a module belongs to, or None."""
    return parts[2] if list(parts[:2]) == ["numbanet_kernels", "families"] and len(parts) > 2 else None


def inside(parts):
    """Whether a module, or a name of one, is in a file of a room."""
    return len(parts) > 3 and ROOT.joinpath(*parts[:4]).with_suffix(".py").is_file()


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_import_rules(path):
    broken = [f"line {line}: {module}: {why}" for module, line in imported(path) if (why := forbidden(path, module))]
    assert not broken


OFFENDERS = [
    ("numbanet/estimators/net.py", "numba.cuda"),
    ("numbanet/ops/linear.py", "numbanet_kernels.families.gemm"),
    ("numbanet/ops/linear.py", "numbanet_kernels.runtime.launch"),
    ("numbanet/layers/device.py", "numbanet_kernels.families.gemm"),
    ("numbanet/demo.py", "numbanet.cli.tables"),
    ("datasets/idx.py", "numbanet.cli"),
    ("numbanet/plans/rows.py", "numbanet.ops.linear"),
    ("numbanet/layers/base.py", "numbanet.training.optim"),
    ("numbanet/tensor.py", "numbanet.plans"),
    ("numbanet/training/task.py", "numbanet.estimators.net"),
    ("numbanet/dropout/base.py", "numbanet.training.stepper"),
    ("numbanet/device.py", "numbanet.tensor"),
    *(
        (f"numbanet_kernels/{here}.py", f"{there}.x")
        for here, there in (
            ("families/gemm", "numba.cuda"),
            ("host/threads", "threadpoolctl"),
            ("families/gemm", "numbanet"),
            ("families/gemm", "numbanet_kernels.cpu"),
            ("families/conv/cpu", "numba.cuda"),
            ("families/conv/cpu", "numbanet_kernels.ptx"),
            ("families/gemm", "numbanet_kernels.families.conv.cpu"),
            ("families/lstm/cpu", "numbanet_kernels.families.conv.cpu"),
            ("families/gemm", "numbanet_kernels.ptx"),
            ("blocks/copies", "numbanet_kernels.families"),
            ("blocks/copies", "numbanet_kernels.host"),
            ("host/threads", "numbanet_kernels.blocks"),
            ("layouts/tiles", "numbanet_kernels.runtime"),
            ("runtime/memory", "numbanet_kernels.host"),
            ("ptx/machine", "numbanet_kernels.runtime"),
            ("ptx/machine", "numbanet_kernels.card"),
            ("runtime/memory", "numbanet_kernels.card"),
            ("card/heap", "numbanet_kernels.families"),
        )
    ),
]


@pytest.mark.parametrize("path, module", OFFENDERS)
def test_the_import_rules_find_offenders(path, module):
    assert forbidden(ROOT / path, module)


def test_imports_are_found():
    assert "numbanet.plans.Plan" in {module for module, _ in imported(ROOT / "numbanet/dropout/base.py")}


def test_blas_alone_multiplies_matrices():
    """But for float64, in references and checks."""
    found = [path for path in SOURCES if "np.matmul" in (text := path.read_text(encoding="utf-8")) or "np.dot" in text]
    assert found == [ROOT / "numbanet_kernels/host/blas.py"]


@pytest.mark.slow
def test_devices_are_told_apart_in_device_py_alone():
    """No comparison with the name of CUDA outside device.py."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and any(
                isinstance(c, ast.Constant) and c.value == "cuda" for c in (node.left, *node.comparators)
            ):
                found.append(path.name)
    assert set(found) <= {"device.py"}


def run(code, **environment):
    import os

    return subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)],
        capture_output=True,
        text=True,
        cwd=ROOT,
        env={**os.environ, **environment},
        timeout=120,
    )


@pytest.mark.slow
def test_import_without_any_cuda_package():
    """numbanet imports, trains and explains what is missing where no CUDA package can be found."""
    done = run("""
        import sys
        class Missing:
            def find_spec(self, name, path=None, target=None):
                if name.split(".")[0] in ("numba_cuda", "cuda", "nvidia", "_numba_cuda_redirector"):
                    raise ModuleNotFoundError(name)
                if name == "numba.cuda" or name.startswith("numba.cuda."):
                    raise ModuleNotFoundError(name)
        sys.meta_path.insert(0, Missing())
        import numbanet, numbanet.datasets, numbanet_kernels.cpu, numbanet_kernels.cuda, numbanet_kernels.emulated
        from numbanet.device import problem
        X, y, _, _ = numbanet.datasets.load_digits()
        print(numbanet.Net((8,), epochs=1, dropout="tdp").fit(X, y).n_iter_, numbanet.device("auto").name)
        try:
            numbanet.device("cuda")
        except RuntimeError as error:
            print(error)
    """)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("1 cpu") and "numba-cuda[cu13]" in done.stdout


def test_import_is_lean():
    done = run(
        "import sys, numbanet, numbanet.datasets; "
        "print([m for m in ('sklearn', 'scipy.optimize', 'scipy.stats', 'rich', 'matplotlib', 'torch', 'pandas') "
        "if m in sys.modules])"
    )
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


@pytest.mark.slow
def test_import_compiles_nothing():
    done = run("""
        import numba.core.compiler as compiler
        def refuse(*a, **k): raise SystemExit("compiled at import")
        compiler.compile_extra = refuse
        import numbanet, numbanet_kernels.cpu, numbanet_kernels.cuda
    """)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_folder_that_cannot_be_written_means_no_cache_not_an_error():
    done = run("""
        import numba.core.caching as caching
        def nowhere(*a, **k): raise RuntimeError("cannot cache function: no locator available")
        caching.CacheImpl.__init__ = nowhere
        import numpy as np
        from numbanet import Tensor, ops
        print(ops.linear(Tensor(np.ones((2, 3))), Tensor(np.ones((4, 3))), Tensor(np.ones(4)), relu=True).numpy()[0, 0])
    """)
    assert done.stdout.strip() == "4.0", done.stderr


def test_op_tables_have_the_same_names_and_signatures():
    tables = [operations(table) for table in (cpu, cuda, emulated)]
    assert len(NAMES) == len(tables) and all(table.keys() == tables[0].keys() for table in tables)
    for name in tables[0]:
        first, *others = (inspect.signature(table[name]) for table in tables)
        assert all(other == first for other in others), name
        assert tables[0][name].__doc__, f"{name} has no docstring"


def test_every_family_has_a_reference_or_says_what_it_is():
    """Files that are not of a family's reference, CPU or CUDA alone have all three, in this order."""
    files = {path: path.glob("*.py") if path.is_dir() else [path] for path in FAMILIES}
    for path, parts in files.items():
        stems = {part.stem for part in parts if part.stem != "__init__"} - {path.stem}
        assert not path.is_dir() or stems >= {"family", "cpu", "cuda"}, path.name
        for name in ["family", *(stem for stem in stems if not re.match("family|cpu|cuda", stem))]:
            text = (path / f"{name}.py" if path.is_dir() else path).read_text(encoding="utf-8")
            sections = ["reference"] if path.is_dir() and name == "family" else ["reference", "CPU", "CUDA"]
            places = [text.index(f"# --- {section} ---") for section in sections]
            assert places == sorted(places), (path.name, name)
            assert "_reference(" in text


def test_every_kernel_belongs_to_a_family():
    assert {kernel.family for kernel in declare.all_kernels()} == {path.stem for path in FAMILIES} | {"memory"}


def test_what_ends_in_the_name_of_a_device_is_an_operation_of_both():
    """No public function of the rooms that have operations has a version for one device alone."""
    names = [name for module in tables.modules() for name in vars(module) if not name.startswith("_")]
    assert (
        {n.removesuffix("_cpu") for n in names if n.endswith("_cpu")}
        == {n.removesuffix("_cuda") for n in names if n.endswith("_cuda")}
        == operations(cpu).keys()
    )
    assert {path.stem for path in FAMILIES} <= {tables.family_of(module) for module in tables.modules()}


@pytest.mark.parametrize("room", ["", "families", "blocks", "layouts", "host", "runtime", "ptx", "card"])
def test_a_change_in_any_folder_changes_what_intrinsics_are_called(room, tmp_path):
    assert declare.PACKAGE == ROOT / "numbanet_kernels" and declare.PACKAGE.joinpath(room).is_dir()
    copy = shutil.copytree(declare.PACKAGE, tmp_path / "kernels", ignore=shutil.ignore_patterns("__pycache__"))
    before = declare.digest(copy)
    assert before == declare.digest(declare.PACKAGE)
    shutil.copytree(copy, tmp_path / "changed")
    with (tmp_path / "changed" / room / "__init__.py").open("a") as file:
        file.write("# changed\n")
    assert (declare.digest(tmp_path / "changed") != before) == (room not in ("ptx", "card"))  # they only read what was compiled


def test_every_kernel_is_listed_once():
    names = [(kernel.family, kernel.__name__, kernel.variant) for kernel in declare.all_kernels()]
    assert len(names) == len(set(names)) > 20
