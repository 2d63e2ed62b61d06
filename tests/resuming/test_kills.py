"""kill -9 at any moment: no file is damaged, at most one interval is lost, and the resumed fit ends in the same bits."""

import multiprocessing
import signal
import struct
import time
from pathlib import Path

import numpy as np
import pytest

from numbanet import Net
from numbanet.estimators import saving

from . import killed

PATIENCE = 120  # seconds until a process must have made a step


def steps(folder):
    """The number of steps that the process has made."""
    try:
        return struct.unpack("q", Path(f"{folder}.steps").read_bytes())[0]
    except (FileNotFoundError, struct.error):
        return 0


def started(folder, seed, epochs):
    """A process that trains, and has made a step since it started. It is forked from one that has imported all there is to
    import, and has done nothing: that takes longer than what it does until it is killed.
    """
    Path(f"{folder}.steps").unlink(missing_ok=True)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([killed.__name__, "numbanet_kernels.cpu"])
    process, until = (
        context.Process(target=killed.main, args=(str(folder), seed, epochs), daemon=True),
        time.monotonic() + PATIENCE,
    )
    process.start()
    while not steps(folder) and process.is_alive() and time.monotonic() < until:
        time.sleep(0.005)
    return process


def check_files(folder, made):
    """All checkpoints are whole, and the newest is at most one interval old.

    A step is counted before its checkpoint is written, so after step EVERY there may be none yet.
    """
    found = [saving.read(path) for path in folder.glob("checkpoint-*.safetensors")]
    saved = Net.resume(folder, callbacks=[])._unfinished.state["optimizer"]["steps"] if found else 0
    assert made - killed.EVERY <= saved <= made


def killed_often(tmp_path, kills, epochs):
    rng, done, seed = np.random.default_rng(0), 0, 0
    while done < kills:
        folder = tmp_path / f"run {seed}"
        while not Path(f"{folder}.npz").exists():
            process = started(folder, seed, epochs)
            if done < kills:
                time.sleep(rng.uniform(0, 1))
                process.kill()
                process.join()
                killed_now = process.exitcode == -signal.SIGKILL
                done += killed_now
                if killed_now and not Path(f"{folder}.npz").exists():
                    check_files(folder, steps(folder))
            else:
                process.join(PATIENCE)
                assert process.exitcode == 0
        with np.load(f"{folder}.npz") as found:
            expected = killed.final(killed.trained(tmp_path / f"whole {seed}", seed, epochs))
            assert found.keys() == expected.keys()
            for name, array in expected.items():
                np.testing.assert_array_equal(found[name], array, err_msg=name)
        seed += 1


@pytest.mark.slow
def test_a_killed_fit_goes_on(tmp_path):
    killed_often(tmp_path, kills=10, epochs=100)


@pytest.mark.alone
@pytest.mark.long
def test_a_fit_that_is_killed_200_times_goes_on(tmp_path):
    killed_often(tmp_path, kills=200, epochs=300)
