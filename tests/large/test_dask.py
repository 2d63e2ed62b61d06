"""Searches on a Dask cluster of two workers: results equal those of processes, threads do not multiply, interrupts end all."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import joblib
import numpy as np
import pytest
from sklearn.experimental import enable_halving_search_cv  # noqa: F401
from sklearn.model_selection import GridSearchCV, HalvingRandomSearchCV

from numbanet import Net
from numbanet.datasets import load_digits

distributed = pytest.importorskip("distributed")

ROOT = Path(__file__).parents[2]
X, Y, _, _ = load_digits()
X, Y = X[:300], Y[:300]
WAIT = 120  # seconds until a search runs, or has ended

pytestmark = [pytest.mark.alone, pytest.mark.slow]


@pytest.fixture(scope="module")
def cluster():
    """A cluster of two worker processes on this machine."""
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "worker_dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster):
        yield cluster


def net(**options):
    return Net((32,), dropout="rdp", epochs=3, random_state=0, device="cpu", **options)


def threads(estimator, X, y):
    """As a score: the number of threads that training used."""
    from numbanet.device import device

    dev = device("cpu")
    with dev.session(**estimator._session_options()):
        return dev.workers()


def found(search, backend, **options):
    with joblib.parallel_config(backend=backend, **options):
        search.fit(X, Y)
    return {name: value for name, value in search.cv_results_.items() if "time" not in name}


SEARCHES = {
    "grid": lambda: GridSearchCV(net(), {"learning_rate": [0.001, 0.01, 0.1], "dropout_rate": [0.3, 0.6]}, cv=3),
    "halving": lambda: HalvingRandomSearchCV(
        net(), {"learning_rate": [0.001, 0.01, 0.1], "dropout_rate": [0.3, 0.6]}, cv=3, random_state=0, min_resources=100
    ),
}


@pytest.mark.parametrize("name", SEARCHES)
def test_results_are_those_of_processes(name, cluster):
    """The scores of each split, and the weights of the best estimator."""
    searches = [SEARCHES[name](), SEARCHES[name]()]
    here, there = found(searches[0], "loky", n_jobs=2), found(searches[1], "dask")
    assert here.keys() == there.keys()
    for key, value in here.items():
        np.testing.assert_array_equal(np.ma.getdata(there[key]), np.ma.getdata(value), err_msg=key)
    ours, theirs = (search.best_estimator_.model_.state_dict() for search in searches)
    for key, array in ours.items():
        np.testing.assert_array_equal(theirs[key], array)


@pytest.mark.parametrize("n_jobs", [None, -1, 1])
def test_each_worker_keeps_to_its_share_of_the_cores(n_jobs, cluster):
    results = found(GridSearchCV(net(n_jobs=n_jobs), {"momentum": [0.8, 0.9]}, cv=2, scoring=threads, refit=False), "dask")
    assert (results["mean_test_score"] == 1).all(), results["mean_test_score"]


SEARCH = """
import sys
import joblib
from distributed import Client, LocalCluster
from sklearn.model_selection import GridSearchCV
from numbanet import Net
from numbanet.datasets import load_digits

def main():
    X, y, _, _ = load_digits()
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "worker_dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster) as client:
        pids = client.run(__import__("os").getpid)
        print(*pids.values(), flush=True)
        with joblib.parallel_config(backend="dask"):
            GridSearchCV(Net((64,), epochs=100000), {"momentum": [0.8, 0.9]}, cv=2).fit(X, y)

if __name__ == "__main__":
    main()
"""


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_an_interrupt_ends_the_search_and_its_workers(tmp_path, interruptible):
    script = tmp_path / "search.py"
    script.write_text(SEARCH)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(
        [sys.executable, script], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        pids = [int(pid) for pid in process.stdout.readline().split()]
        assert len(pids) == 2 and all(map(lives, pids))
        time.sleep(5)
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=WAIT)
        assert process.returncode != 0
        until = time.monotonic() + WAIT
        while any(map(lives, pids)) and time.monotonic() < until:
            time.sleep(0.1)
        assert not any(map(lives, pids))
    finally:
        process.kill()


@pytest.mark.long
def test_a_search_takes_as_long_as_in_processes(cluster):
    """At most a tenth longer, in turns: the median over five searches of each kind after a first one."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((3000, 400), np.float32), rng.integers(10, size=3000)
    model = Net((512, 512), epochs=5, random_state=0, device="cpu")
    seconds = {"loky": [], "dask": []}
    for _ in range(6):
        for backend, taken in seconds.items():
            search = GridSearchCV(model, {"learning_rate": [0.001, 0.003, 0.01, 0.03]}, cv=3, refit=False)
            began = time.perf_counter()
            with joblib.parallel_config(backend, **({"n_jobs": 2} if backend == "loky" else {})):
                search.fit(X, y)
            taken.append(time.perf_counter() - began)
    print({backend: [f"{one:.2f}" for one in taken] for backend, taken in seconds.items()})
    ours, theirs = (np.median(taken[1:]) for taken in seconds.values())
    assert theirs <= 1.1 * ours, seconds
