"""Run the tests of NVIDIA's numba-cuda on the emulated card, and list their outcomes.

    python -m tests.kernels.numba_suite FOLDER [--only WORD …] [--missing] [--limit SECONDS] [--out FILE]

FOLDER holds a checkout of github.com/NVIDIA/numba-cuda at the version that is installed; nothing of it is copied. Its tests
need pytest and filecheck. Each module runs in a process of its own, each test within a limit of CPU seconds. FILE is a JSON
object: the machine, the number of tests by outcome, of all and of those that launch kernels, and a list of tests: name,
outcome, number of launches, the reason of a failure, and why it is out of scope, if it is.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.machinery
import json
import os
import sys
import tempfile
from pathlib import Path

from tests.kernels.others import CHECKOUT, apart, counted, launches, limited, print_reasons, record

TESTS = "numba_cuda/numba/cuda/tests"
LEFT_OUT = ("benchmarks", "cudasim", "nocuda")  # times, the simulator, and what is tested where no card is
# the parts of the names of tests that fail for a reason which is no defect of the emulated card, and the reason
OUT_OF_SCOPE = {
    "TestDispatcher::test_dispatcher_cpointer_arguments": "a fault of the test: it reads and writes behind its arrays",
    "TestException::test_raise_causing_warp_diverge": "a fault of the test: a race, 19 threads add to each element",
    "TestCudaLocalMem::test_struct_model_type_arr": "a fault of the test: ten elements are written to an array of one",
    "TestFreeVar::test_freevar": "a fault of the test: it reads shared memory that nobody wrote",
    "TestSharedMemoryIssue::test_issue_2393": "a fault of the test: it reads shared memory that nobody wrote",
    "TestSharedMemoryCreation::test_global": "a fault of the test: it reads shared memory that nobody wrote",
    "TestIpc": "sharing memory with other processes (IPC)",
    "graph_builder": "CUDA graphs",
    "TestInspect::test_inspect_lto": "link-time optimization: code is linked without it",
    "TestInit::": "how a driver fails to start",
    "TestMultiprocessing::test_fork": "that a driver fails after a fork: the emulated card does not",
    "TestCudaIntrinsic::test_issue_9229": "size: 5,663 million threads",
    "TestCudaLaplace::test_laplace_small": "size: up to 1000 steps on 256 x 256 points",
    "test_cuda_matmul": "size: 4,096 million multiply-adds",
    "test_ex_3d_grid": "size: 454 million elements",
    # numba-cuda 0.30 stamps a source by its time and size, and Numba 0.68 by a digest: each replaces the index of the other
    "CUDAAndCPUCachingTest::test_cpu_and_cuda": "a fault of the versions: each cache replaces that of the other",
}


def modules(folder: Path, words: list[str]) -> list[str]:
    """Return the names of the test modules in a checkout, such as "cudapy.test_array"."""
    root = folder / TESTS
    found = [".".join(path.relative_to(root).with_suffix("").parts) for path in sorted(root.rglob("test_*.py"))]
    return [name for name in found if name.split(".")[0] not in LEFT_OUT and (not words or any(w in name for w in words))]


class Finder:
    """Finds the modules of numba.cuda.tests in a checkout."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / TESTS

    def find_spec(self, name, path=None, target=None):
        if not name.startswith("numba.cuda.tests."):
            return None
        return importlib.machinery.PathFinder.find_spec(name, [str(self.root.joinpath(*name.split(".")[3:-1]))], target)


# --- in the process of a module ---------------------------------------------------------------------------------------
def run_module(folder: Path, name: str, limit: float, report: Path, skipped: list[str]) -> None:
    """Run the tests of one module under the emulated card; append a line of JSON to `report` for each test."""
    import pytest

    import numbanet

    with numbanet.emulated(), tempfile.TemporaryDirectory() as site:
        Path(site, "sitecustomize.py").write_text("import numbanet\n")  # for the processes that tests start
        os.environ.update(NUMBANET_EMULATED="1", PYTHONPATH=os.pathsep.join([site, str(CHECKOUT), *sys.path[1:]]))
        os.environ.pop("NUMBA_CACHE_DIR", None)  # tests look for the files of caches beside their sources
        for config in (importlib.import_module("numba.core.config"), importlib.import_module("numba.cuda.core.config")):
            config.reload_config()
        sys.meta_path.insert(0, Finder(folder))
        path = folder / TESTS / Path(*name.split(".")).with_suffix(".py")
        plugin = _plugin(f"numba.cuda.tests.{name}", limit, report, skipped)
        with tempfile.TemporaryDirectory() as empty:
            status = pytest.main(
                [str(path), "-q", "-p", "no:cacheprovider", "--noconftest", f"--rootdir={empty}", "-c", os.devnull],
                plugins=[plugin],
            )
    sys.exit(status)  # 2 if the module cannot be imported


def _plugin(dotted, limit, report, skipped):
    """Return a plugin of pytest: it imports the module by its dotted name, limits tests, and reports them."""
    import pytest

    class Module(pytest.Module):
        def _getobj(self):
            return importlib.import_module(dotted)

    class Plugin:
        def __init__(self):
            self.launches = 0

        def pytest_pycollect_makemodule(self, module_path, parent):
            return Module.from_parent(parent, path=module_path)

        def pytest_collect_directory(self, path, parent):
            return pytest.Dir.from_parent(parent, path=path)  # not a package, which pytest would import by another name

        @pytest.fixture(scope="class")
        def initialize_from_pytest_config(self, request):
            request.cls._dump_failed_filechecks = False

        def pytest_collection_modifyitems(self, items):
            items[:] = [item for item in items if _short(item) not in skipped]

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_call(self, item):
            with report.open("a") as file:
                file.write(json.dumps({"started": _short(item)}) + "\n")
            self.launches = launches()
            with limited(limit):
                return (yield)

        @pytest.hookimpl(wrapper=True)
        def pytest_runtest_makereport(self, item, call):
            result = yield
            if call.when == "call" or result.outcome != "passed":
                reason = f"{call.excinfo.typename}: {call.excinfo.value}" if call.excinfo else ""
                outcome = "slow" if reason.startswith("Slow") else "xfail" if hasattr(result, "wasxfail") else result.outcome
                made = launches() - self.launches if call.when == "call" else 0
                line = {"name": _short(item), "outcome": outcome, "launches": made, "reason": reason[:600]}
                with report.open("a") as file:
                    file.write(json.dumps(line) + "\n")
            return result

    return Plugin()


def _short(item):
    return item.nodeid.partition("::")[2] or item.nodeid


# --- in the first process ---------------------------------------------------------------------------------------------
def outcomes(folder: Path, name: str, limit: float) -> list[dict]:
    """Run a module in a process of its own; if a test ends the process, note it, and run the others without it."""
    done: dict[str, dict] = {}
    for _ in range(20):
        with tempfile.TemporaryDirectory() as scratch:
            report, skip = Path(scratch, "report"), Path(scratch, "skip")
            skip.write_text("\n".join(done))
            given = [str(folder), "--module", name, "--limit", str(limit), "--report", str(report), "--skip", str(skip)]
            status, output = apart("tests.kernels.numba_suite", *given)
            lines = [json.loads(line) for line in report.read_text().splitlines()] if report.exists() else []
        done.update({line["name"]: line for line in lines if "name" in line})
        begun = [line["started"] for line in lines if "started" in line and line["started"] not in done]
        if not lines and not done and status not in (0, 1, 5):
            reason = " / ".join(output.strip().splitlines()[-3:])[:600]
            return [{"name": f"{name}::(module)", "outcome": "failed", "launches": 0, "reason": reason}]
        if not begun:
            break
        done[begun[-1]] = {"name": begun[-1], "outcome": "crashed", "launches": 0, "reason": f"status {status}"}
    return [{**line, "name": f"{name}::{line['name']}", **_scope(line)} for line in done.values()]


def _scope(line: dict) -> dict:
    """Return the entry that says why a test that fails is out of scope; an empty one if it is not."""
    reasons = [why for part, why in OUT_OF_SCOPE.items() if part in line["name"]]
    return {"out of scope": reasons[0]} if reasons and line["outcome"] in ("failed", "crashed", "slow") else {}


def summary(found: list[dict]) -> dict:
    """Return the number of tests by outcome: of all, and of those that launch kernels."""
    return {"all": counted(found), "that launch kernels": counted([line for line in found if line["launches"]])}


def main() -> None:
    """Parse the command line; run all modules, or, in a process of its own, one."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--only", nargs="+", default=[], metavar="WORD", help="modules with one of these words in their names")
    parser.add_argument("--missing", action="store_true", help="modules of which no outcome is in FILE")
    parser.add_argument("--limit", type=float, default=60, help="CPU seconds of a test")
    parser.add_argument("--out", type=Path, default=CHECKOUT / "bench/results/numba-cuda-suite.json")
    for hidden in ("--module", "--report", "--skip"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.module:
        skipped = Path(options.skip).read_text().splitlines()
        run_module(options.folder, options.module, options.limit, Path(options.report), skipped)
        return
    partly = options.out.exists() and (options.only or options.missing)
    before = json.loads(options.out.read_text())["tests"] if partly else []
    known = {line["name"].partition("::")[0] for line in before} if options.missing else set()
    names = [name for name in modules(options.folder, options.only) if name not in known]
    found = [line for line in before if line["name"].partition("::")[0] not in names]
    for name in names:
        lines = outcomes(options.folder, name, options.limit)
        found += lines
        print(f"{name}: {summary(lines)['all']}", flush=True)
        _write(options, found)
    _write(options, found)
    print(json.dumps(summary(found), indent=1))
    failed = [line for line in found if line["outcome"] not in ("passed", "skipped", "xfail") and line["launches"]]
    print_reasons(failed)


def _write(options: argparse.Namespace, found: list[dict]) -> None:
    """Write the list."""
    record(options.out, options.limit, summary(found), _scope, tests=found)


if __name__ == "__main__":
    main()
