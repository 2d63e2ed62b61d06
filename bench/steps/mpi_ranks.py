"""Training steps of several ranks as one task: processes that the worker starts, and that sleep between requests."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Mapping
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import numpy as np

from ..machinery.worker import THREAD_VARIABLES, Task

SECONDS = 120.0  # to start, import and compile


class RankTask(Task):
    """Task: training steps of several processes of one thread each. Each rank connects to this one, and waits for requests.

    Parameters
    ----------
    kind : str
        "numbanet" or "torch".
    ranks : int
    exchange : bool
        Whether the seconds of a repetition are those of the exchange alone.
    settings : dict
        Arguments of the function of `mpi_program` that makes the steps.
    apart : bool
        Whether each rank trains a network of its own, so that ranks exchange nothing and share only the machine.
    """

    def __init__(self, kind: str, ranks: int, exchange: bool, settings: Mapping[str, Any], apart: bool = False) -> None:
        super().__init__(lambda: self.seconds(1), self._outputs)
        self.exchange, self.joint = exchange, 1 if apart else ranks
        self.batch = self.joint * settings["batch"]
        accepted: list[Connection] = []
        with Listener(("127.0.0.1", 0)) as listener:
            listener._listener._socket.settimeout(SECONDS)
            port = listener.address[1]
            started = [_started(kind, self.joint, port, settings) for _ in range(ranks // self.joint)]
            self.close = weakref.finalize(self, _close, accepted, started)
            try:
                while len(accepted) < ranks:
                    accepted.append(listener.accept())
            except OSError:
                self.close()
                raise
        numbers = [connection.recv() for connection in accepted]
        self.connections = [accepted[i] for i in np.argsort(numbers, kind="stable")]

    def ask(self, request: Any) -> list[Any]:
        """The answer of each rank."""
        for connection in self.connections:
            connection.send(request)
        answers = [connection.recv() for connection in self.connections]
        for problem, _ in answers:
            if problem:
                raise RuntimeError(problem)
        return [answer for _, answer in answers]

    def seconds(self, repetitions):
        """Seconds of n steps on the slowest rank; of the exchange, on the fastest, which waits for no other."""
        found = self.ask(("steps", repetitions))
        return (min(exchange for _, exchange in found) if self.exchange else max(wall for wall, _ in found)), None

    def _outputs(self) -> dict[str, Any]:
        """Those of the first rank, with the factors of the samples of all that train with it, and the size of their batch."""
        found = self.ask(("outputs", None))[: self.joint]
        factors = [
            [_joined([of_rank[layer] for of_rank in of_step]) for layer in range(len(of_step[0]))]
            for of_step in zip(*(one["factors"] for one in found))
        ]
        return {**found[0], "factors": factors, "batch": self.batch}

    def link(self) -> tuple[float, float]:
        """(latency in seconds, bandwidth in bytes per second) of an all-reduce over the ranks."""
        return self.ask(("link", None))[0]


def _joined(factors: list[tuple[Any, Any]]) -> tuple[Any, Any]:
    """The factors of all samples: those of activations may differ by sample."""
    weight, activation = factors[0]
    if np.ndim(activation) < 2:
        return weight, activation
    return weight, np.concatenate([own for _, own in factors])


def _started(kind: str, ranks: int, port: int, settings: Mapping[str, Any]) -> subprocess.Popen:
    """Start the ranks: over MPI if there are several of numbanet."""
    program = [*interpreter(), kind, str(ranks), str(port), json.dumps(dict(settings))]
    environment = {**os.environ, **dict.fromkeys(THREAD_VARIABLES, "1")}
    if kind == "numbanet" and ranks > 1:
        program = [mpiexec(), "-n", str(ranks), *program]
    if kind == "torch":  # rank 0 starts the others
        program.append("0")
    return subprocess.Popen(program, env=environment, stdin=subprocess.DEVNULL)


def interpreter() -> list[str]:
    """The beginning of the command that runs `mpi_program`, which finds modules where this process does."""
    return [sys.executable, "-c", f"import sys; sys.path[:] = {sys.path!r}; from {__package__}.mpi_program import main; main()"]


def mpiexec() -> str:
    """The launcher that belongs to this Python, else that of the system.

    Raises
    ------
    RuntimeError
        If there is none.
    """
    beside = Path(sys.executable).parent / "mpiexec"
    found = str(beside) if beside.exists() else shutil.which("mpiexec")
    if found is None:
        raise RuntimeError("mpiexec is missing: pip install 'numbanet[mpi]'")
    return found


def _close(connections: list[Connection], processes: list[subprocess.Popen]) -> None:
    """End the ranks: they end when their connections are closed."""
    for connection in connections:
        connection.close()
    for process in processes:
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()


def numbanet_ranks(ranks: int, exchange: bool = False, apart: bool = False, **settings: Any) -> RankTask:
    """Task: steps of numbanet on several ranks."""
    return RankTask("numbanet", ranks, exchange, settings, apart)


def torch_ranks(ranks: int, **settings: Any) -> RankTask:
    """Task: steps of PyTorch's DistributedDataParallel with gloo on several ranks, which meet in a file."""
    folder = tempfile.TemporaryDirectory(prefix="numbanet-ddp-")
    task = RankTask("torch", ranks, False, {**settings, "meeting": str(Path(folder.name, "meeting"))})
    weakref.finalize(task, folder.cleanup)
    return task
