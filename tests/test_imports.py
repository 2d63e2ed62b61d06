"""Who may import whom, by AST; what an import may load, by subprocess; the op tables, by signature."""
import ast
import inspect
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from numbanet.device import NAMES, operations
from numbanet_kernels import cpu, cuda, emulated, launch

ROOT = Path(__file__).parent.parent
SOURCES = [path for folder in ("numbanet", "numbanet_kernels", "datasets") for path in sorted((ROOT / folder).rglob("*.py"))]


def imported(path):
    """(module, line) of every import in a file, relative ones resolved against its package."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom):
            within = package[:len(package) - node.level + 1] if node.level else ()
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
    if module == "numbanet_kernels.tiles":  # arithmetic that plans and kernels share, no kernel
        return None
    if folder == "numbanet" and top == "numbanet_kernels" and path.name not in ("device.py", "cli.py"):
        return "numbanet reaches kernels only through device.py"
    if folder == "numbanet_kernels" and top in ("numbanet", "datasets"):
        return "kernels know nothing of numbanet"
    if folder == "numbanet_kernels" and module.startswith("numba.cuda") and path.name != "launch.py":
        return "numba.cuda is reached only through launch.py"
    return None


@pytest.mark.parametrize("path", SOURCES, ids=lambda path: str(path.relative_to(ROOT)))
def test_import_rules(path):
    broken = [f"line {line}: {module}: {why}" for module, line in imported(path) if (why := forbidden(path, module))]
    assert not broken


def test_the_import_rules_find_offenders(tmp_path):
    assert forbidden(ROOT / "numbanet/net.py", "numba.cuda") and forbidden(ROOT / "numbanet/net.py", "numbanet_kernels.gemm")
    assert forbidden(ROOT / "numbanet_kernels/gemm.py", "numba.cuda") and forbidden(ROOT / "datasets/idx.py", "numbanet.net")
    assert ("numbanet.plan.Plan", 16) in {(m, 16) for m, _ in imported(ROOT / "numbanet/dropout.py")}


def test_devices_are_told_apart_in_device_py_alone():
    """No comparison with the name of CUDA outside device.py."""
    found = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Compare) and any(isinstance(c, ast.Constant) and c.value == "cuda"
                                                     for c in (node.left, *node.comparators)):
                found.append(path.name)
    assert set(found) <= {"device.py"}


def run(code, **environment):
    import os
    return subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, cwd=ROOT,
                          env={**os.environ, **environment}, timeout=120)


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
    done = run("import sys, numbanet, numbanet.datasets; "
               "print([m for m in ('sklearn', 'scipy.optimize', 'scipy.stats', 'rich', 'matplotlib', 'torch', 'pandas') "
               "if m in sys.modules])")
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_import_compiles_nothing():
    done = run("""
        import numba.core.compiler as compiler
        def refuse(*a, **k): raise SystemExit("compiled at import")
        compiler.compile_extra = refuse
        import numbanet, numbanet_kernels.cpu, numbanet_kernels.cuda
    """)
    assert done.returncode == 0, done.stderr


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
    for path in sorted((ROOT / "numbanet_kernels").glob("*.py")):
        text = path.read_text(encoding="utf-8")
        # tables, and what families stand on
        if path.stem not in ("__init__", "calibrate", "copies", "costs", "cpu", "cuda", "emulated", "gemm_block",
                             "gemm_grouped", "gemm_listed", "graph", "interrupt", "intrinsics", "launch", "memory", "pool",
                             "samples", "sums", "threads", "tiles", "turn"):
            places = [text.index(f"# --- {part} ---") for part in ("reference", "CPU", "CUDA")]
            assert places == sorted(places), path.name
            assert "_reference(" in text


def test_every_kernel_is_listed_once():
    names = [(kernel.family, kernel.__name__, kernel.variant) for kernel in launch.all_kernels()]
    assert len(names) == len(set(names)) > 20
