"""Ranks that are processes, started by mpiexec: they train, and end together, whatever happens to one of them."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import pytest

from numbanet import Net

pytest.importorskip("mpi4py")
ROOT = Path(__file__).resolve().parents[2]
BESIDE = Path(sys.executable).parent / "mpiexec"
MPIEXEC = str(BESIDE) if BESIDE.exists() else shutil.which("mpiexec")
pytestmark = [pytest.mark.slow, pytest.mark.skipif(MPIEXEC is None, reason="needs mpiexec")]
SECONDS = 10  # within which all ranks end if one fails
START = 120  # seconds in which the ranks import and compile

PROGRAM = """
import os, sys
from pathlib import Path
import numpy as np
from numbanet import Hook, Net

rng = np.random.default_rng(0)
X = rng.standard_normal((200, 12)).astype(np.float32)
y = X[:, :3].argmax(1)
RANK = int(os.environ.get("PMI_RANK", os.environ.get("OMPI_COMM_WORLD_RANK", 0)))
SETTINGS = dict(dropout="rdp", batch_size=8, random_state=0, device="cpu", parallel="mpi")
"""
TRAINED = """
net = Net((32, 32), epochs=5, verbose=1, **SETTINGS).fit(X, y, validation=(X, y))
np.savez(f"{sys.argv[1]}/{RANK}.npz", **{name: t.numpy() for name, t, _ in net.model_.named()})
"""
WORKS = """
class Fails(Hook):
    def before_step(self, run, batch):
        self.step = getattr(self, "step", 0) + 1
        if self.step == 10:  # all ranks come here before one fails
            Path(sys.argv[1], f"{RANK} {os.getpid()}").touch()
        if self.step >= 20 and RANK == 1:
            FAILURE
        return batch

Net((300, 300), epochs=100000, callbacks=[Fails()], **SETTINGS).fit(X, y)  # ranks share the memory of large gradients
"""


def started(program, size=2, *arguments, **environment):
    names = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", **environment}
    command = [MPIEXEC, "-n", str(size), sys.executable, "-c", textwrap.dedent(program), *map(str, arguments)]
    return subprocess.Popen(
        command, env={**os.environ, **names}, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    )


def ended(process, seconds=START):
    """(exit status, stdout, stderr) of a program; it is killed if it does not end in time, and the test fails."""
    try:
        out, errors = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, errors = process.communicate()
        pytest.fail(f"the ranks did not end: {out} {errors}")
    return process.returncode, out, errors


@pytest.mark.parametrize("size", [2, pytest.param(4, marks=pytest.mark.long)])
def test_processes_equal_one_process(size, tmp_path):
    status, out, errors = ended(started(PROGRAM + TRAINED, size, tmp_path))
    assert status == 0, errors
    assert len(re.findall("^epoch ", out, re.M)) == 5  # rank 0 alone speaks
    rng = np.random.default_rng(0)
    X = rng.standard_normal((200, 12)).astype(np.float32)
    settings = {"dropout": "rdp", "batch_size": 8, "random_state": 0, "device": "cpu"}
    alone = Net((32, 32), epochs=5, **settings).fit(X, X[:, :3].argmax(1))
    found = [np.load(tmp_path / f"{rank}.npz") for rank in range(size)]
    for name, tensor, _ in alone.model_.named():
        assert all(np.array_equal(found[0][name], other[name]) for other in found)
        np.testing.assert_allclose(found[0][name], tensor.numpy(), atol=1e-5)


OTHERS = """
import sys
import numpy as np
from numbanet import LanguageModel, Net
from numbanet.training.large import mapped, rows

rows.LEAST, mapped.FEW = 1, 100  # small files count as large
rng = np.random.default_rng(0)
images, labels = rng.standard_normal((130, 1, 28, 28)).astype(np.float32), rng.integers(0, 10, 130)
words = rng.integers(0, 30, 1200)
words[1::2] = (words[::2] * 7 + 3) % 30
X = np.load(f"{sys.argv[1]}/X.npy", mmap_mode="r")
SETTINGS = dict(random_state=0, device="cpu")

def models(**ranks):
    shard = dict(ranks, shard=lambda rank, size: slice(rank * 420, (rank + 1) * 420)) if ranks else {}
    low = dict(learning_rate=0.002)  # at the default, the loss of these images grows, and differences of rounding with it
    yield "images", Net("lenet5", dropout="rdp", epochs=3, batch_size=40, **low, **ranks, **SETTINGS).fit(images, labels)
    yield "text", LanguageModel((32,), dropout="batchwise", epochs=2, batch_size=12, steps=8, **ranks, **SETTINGS).fit(words)
    yield "file", Net((32,), dropout="rdp", epochs=2, batch_size=840, **shard, **SETTINGS).fit(X, X[:, :3].argmax(1))

def weights(**ranks):
    return {f"{kind} {name}": t.numpy() for kind, net in models(**ranks) for name, t, _ in net.model_.named()}
"""


def test_images_text_and_files_in_processes(tmp_path):
    """Each rank reads its own rows of a file that stays on the disk; the joint batch is the whole file."""
    np.save(tmp_path / "X.npy", np.random.default_rng(1).standard_normal((840, 400), np.float32))
    program = (
        OTHERS
        + """
from numbanet.parallel import mpi
np.savez(f"{sys.argv[1]}/{mpi.world().rank}.npz", **weights(parallel="mpi"))
"""
    )
    status, _, errors = ended(started(program, 2, tmp_path))
    assert status == 0, errors
    alone = {"__name__": "alone"}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["", str(tmp_path)])
        exec(OTHERS, alone)
    found = [np.load(tmp_path / f"{rank}.npz") for rank in range(2)]
    for name, expected in alone["weights"]().items():
        np.testing.assert_array_equal(found[0][name], found[1][name], err_msg=name)
        np.testing.assert_allclose(found[0][name], expected, atol=1e-5, err_msg=name)


def test_large_sums_are_made_of_pieces_a_few_at_a_time(tmp_path):
    """Several are started before one is finished, and more bytes than may be under way."""
    program = """
        import json, sys
        from pathlib import Path
        import numpy as np
        from numbanet.parallel import mpi
        mpi.FLYING = 400
        ranks = mpi.world()
        def summed(sizes):
            arrays = [np.arange(n, dtype=np.float32).reshape(n // 10 or 1, -1) * (ranks.rank + 1) for n in sizes]
            finish = [ranks.start(array) for array in arrays]
            under_way = [ranks.flying]
            for wait in finish:
                wait()
                under_way.append(ranks.flying)
            return all(np.array_equal(a, 3 * np.arange(a.size).reshape(a.shape)) for a in arrays), under_way

        found = [summed([60, 100, 110, 1000, 0]), summed([1000, 10]), summed([40, 40, 40])]
        Path(sys.argv[1], str(ranks.rank)).write_text(json.dumps(found))
    """
    status, _, errors = ended(started(program, 2, tmp_path))
    assert status == 0, errors
    ways = [240, 0, 0, 0, 0, 0], [400, 0, 0], [320, 160, 0, 0]
    assert [json.loads(path.read_text()) for path in tmp_path.iterdir()] == [[[True, way] for way in ways]] * 2


def failing(failure, folder):
    """A started program, of which rank 1 fails so from step 20 on, and the ids of the processes of ranks 0 and 1."""
    process = started(PROGRAM + WORKS.replace("FAILURE", failure), 2, folder)
    until = time.monotonic() + START
    while len(list(folder.iterdir())) < 2:
        assert time.monotonic() < until and (process.poll() is None or len(list(folder.iterdir())) == 2), process.communicate()
        time.sleep(0.01)
    return process, dict(map(int, path.name.split()) for path in folder.iterdir())


def gone(number):
    """Whether no process has this id, but one that its parent has not waited for."""
    try:
        return "(zombie)" in Path(f"/proc/{number}/status").read_text()
    except FileNotFoundError:
        return True


@pytest.mark.alone
@pytest.mark.parametrize(
    "failure, told",
    [
        # the launcher may kill rank 0 before it has said so, and names the process
        ("os.kill(os.getpid(), 9)", r"rank 1 of 2 has ended: it was killed|RANK 1 |PID {} "),
        ("raise OSError('no disk')", "rank 1 of 2 ends the run of all ranks: OSError: no disk"),
        ("batch.inputs[...] = np.nan", r"the loss was not finite in .*step \d+ \(rank 1\)"),
        ("sys.exit('enough')", "rank 1 of 2 ends the run of all ranks: SystemExit: enough"),
    ],
)
def test_a_rank_that_fails_ends_all_within_ten_seconds(failure, told, tmp_path):
    process, ids = failing(failure, tmp_path)
    began = time.monotonic()
    status, out, errors = ended(process, SECONDS)
    assert time.monotonic() - began < SECONDS and status != 0
    assert re.search(told.format(ids[1]), out + errors), out + errors
    while not all(map(gone, ids.values())):
        assert time.monotonic() - began < SECONDS, ids


@pytest.mark.alone
@pytest.mark.parametrize(
    "end, told",
    [
        ('raise OSError("no such file")', "rank 1 of 2 failed: OSError: no such file"),
        ("sys.exit()", "rank 1 of 2 has ended its program, and rank 0 waits for it"),
    ],
)
def test_a_rank_that_ends_between_two_fits_ends_all(end, told, tmp_path):
    between = f"""
    import sys
    net = Net((32,), epochs=1, **SETTINGS).fit(X, y)
    if RANK == 1:
        {end}
    net.set_params(epochs=2).fit(X, y)
    """
    status, out, errors = ended(started(PROGRAM + textwrap.dedent(between), 2, tmp_path))
    assert status != 0 and told in out + errors


@pytest.mark.alone
def test_a_rank_notices_a_killed_one_itself():
    """Without the launcher, which kills all others: two programs that find each other through the watch alone."""
    program = """
        import sys
        from numbanet.parallel.watch import Watch
        watch = Watch(int(sys.argv[1]), 2)
        if watch.rank == 0:
            print(*watch.listen(), flush=True)
            while not watch.failure:
                pass
            print(watch.failure, flush=True)
        else:
            watch.connect(sys.argv[2], int(sys.argv[3]))
            print("connected", flush=True)
            input()
    """
    run = [sys.executable, "-c", textwrap.dedent(program)]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "env": {**os.environ, "PYTHONPATH": str(ROOT)}}
    with (
        subprocess.Popen([*run, "0"], **pipes) as first,
        subprocess.Popen([*run, "1", *first.stdout.readline().split()], **pipes) as second,
    ):
        assert second.stdout.readline() == "connected\n"
        second.kill()
        assert first.communicate(timeout=SECONDS)[0] == "rank 1 of 2 has ended: it was killed, or its machine failed\n"


@pytest.mark.long
def test_different_samples_are_refused_before_the_first_step():
    program = "Net((32,), epochs=2, callbacks=[lambda *given: print('trained')], **SETTINGS).fit(X[RANK:], y[RANK:])"
    status, out, errors = ended(started(PROGRAM + program))
    assert status != 0 and "trained" not in out
    assert "parallel: rank 1 has number of samples=199, and rank 0 has number of samples=200" in errors


def test_the_command_trains_in_several_processes(tmp_path):
    command = "from numbanet.cli import main; import sys; sys.exit(main(sys.argv[1:]))"
    file = tmp_path / "net.safetensors"
    arguments = "train --mpi --layers 16 --epochs 2 --quiet --save".split()
    status, out, errors = ended(started(command, 2, *arguments, file))
    assert status == 0, errors
    assert out.count("test accuracy") == out.count("saved:") == 1
    assert "parallel" not in json.dumps(Net.load(file).get_params(), default=str).replace('"parallel": null', "")
