"""Searches on a Dask or Ray cluster of two workers: results equal those of processes, threads do not multiply, interrupts end
all.
"""

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

ROOT = Path(__file__).parents[2]
X, Y, _, _ = load_digits()
X, Y = X[:300], Y[:300]
WAIT = 120  # seconds until a search runs, or has ended

pytestmark = pytest.mark.slow


def dask():
    """A Dask cluster of two worker processes on this machine, while the generator is open."""
    distributed = pytest.importorskip("distributed")
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "worker_dashboard_address": None}
    with distributed.LocalCluster(**options) as cluster, distributed.Client(cluster):
        yield {"backend": "dask"}


def ray():
    """A Ray cluster, which starts two worker processes for each search."""
    ray = pytest.importorskip("ray")
    from ray.util.joblib import register_ray

    environment = {"PYTHONPATH": str(ROOT)}  # workers import this module
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": environment})
    register_ray()
    yield {"backend": "ray", "n_jobs": -1}
    ray.shutdown()


@pytest.fixture(scope="module", params=[dask, pytest.param(ray, marks=pytest.mark.long)])
def cluster(request):
    """The arguments of `joblib.parallel_config` for a cluster of two worker processes."""
    yield from request.param()


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
    here, there = found(searches[0], "loky", n_jobs=2), found(searches[1], **cluster)
    assert here.keys() == there.keys()
    for key, value in here.items():
        np.testing.assert_array_equal(np.ma.getdata(there[key]), np.ma.getdata(value), err_msg=key)
    ours, theirs = (search.best_estimator_.model_.state_dict() for search in searches)
    for key, array in ours.items():
        np.testing.assert_array_equal(theirs[key], array)


@pytest.mark.alone  # where a process may have several threads
@pytest.mark.parametrize("n_jobs", [None, -1, 1])
def test_each_worker_keeps_to_its_share_of_the_cores(n_jobs, cluster):
    results = found(GridSearchCV(net(n_jobs=n_jobs), {"momentum": [0.8, 0.9]}, cv=2, scoring=threads, refit=False), **cluster)
    assert (results["mean_test_score"] == 1).all(), results["mean_test_score"]


PROGRAM = """
import os, sys
from pathlib import Path
import joblib
from sklearn.model_selection import GridSearchCV
from numbanet import Hook, Net
from numbanet.datasets import load_digits

class Tells(Hook):
    def __init__(self, folder):
        self.folder = folder

    def epoch_start(self, run, epoch):
        Path(self.folder, str(os.getpid())).touch()

def main():
    X, y, _, _ = load_digits()
    net = Net((64,), epochs=100000, callbacks=[Tells(sys.argv[1])], device="cpu")
    START
        GridSearchCV(net, {"momentum": [0.8, 0.9]}, cv=2).fit(X, y)

if __name__ == "__main__":
    main()
"""
STARTS = {
    "dask": """
    from distributed import Client, LocalCluster
    options = {"n_workers": 2, "threads_per_worker": 1, "dashboard_address": None, "worker_dashboard_address": None}
    with LocalCluster(**options) as cluster, Client(cluster), joblib.parallel_config(backend="dask"):""",
    "ray": """
    import ray
    from ray.util.joblib import register_ray
    ray.init(num_cpus=2, include_dashboard=False)
    register_ray()
    with joblib.parallel_config(backend="ray", n_jobs=-1):""",
}


def lives(pid):
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


@pytest.mark.alone
@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
@pytest.mark.parametrize("name", ["dask", pytest.param("ray", marks=pytest.mark.long)])
def test_an_interrupt_ends_the_search_and_its_workers(name, tmp_path, interruptible):
    pytest.importorskip({"dask": "distributed"}.get(name, name))
    (tmp_path / "pids").mkdir()
    script = tmp_path / "search.py"
    script.write_text(PROGRAM.replace("START", STARTS[name].strip()))
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script), str(tmp_path / "pids")]
    with (tmp_path / "said").open("w") as said:
        process = subprocess.Popen(command, env=environment, stdout=said, stderr=said)
    pids = []
    try:
        until = time.monotonic() + WAIT
        while len(pids := [int(path.name) for path in (tmp_path / "pids").iterdir()]) < 2:
            assert time.monotonic() < until and process.poll() is None, (tmp_path / "said").read_text()
            time.sleep(0.1)
        assert all(map(lives, pids))
        process.send_signal(signal.SIGINT)
        process.wait(WAIT)
        assert process.returncode != 0
        until = time.monotonic() + WAIT
        while any(map(lives, pids)) and time.monotonic() < until:
            time.sleep(0.1)
        assert not any(map(lives, pids))
    finally:
        process.kill()
        for pid in filter(lives, pids):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.long
@pytest.mark.parametrize("cluster", [dask], indirect=True)  # Ray starts its workers again for each search
def test_a_search_takes_as_long_as_in_processes(cluster):
    """At most a tenth longer, in turns: the median over five searches of each kind after a first one."""
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((3000, 400), np.float32), rng.integers(10, size=3000)
    model = Net((512, 512), epochs=5, random_state=0, device="cpu")
    kinds = {"loky": {"backend": "loky", "n_jobs": 2}, "cluster": cluster}
    seconds = {"loky": [], "cluster": []}
    for _ in range(6):
        for kind, taken in seconds.items():
            search = GridSearchCV(model, {"learning_rate": [0.001, 0.003, 0.01, 0.03]}, cv=3, refit=False)
            began = time.perf_counter()
            with joblib.parallel_config(**kinds[kind]):
                search.fit(X, y)
            taken.append(time.perf_counter() - began)
    print({backend: [f"{one:.2f}" for one in taken] for backend, taken in seconds.items()})
    ours, theirs = (np.median(taken[1:]) for taken in seconds.values())
    assert theirs <= 1.1 * ours, seconds
