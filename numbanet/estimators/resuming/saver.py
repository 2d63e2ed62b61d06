"""Saver: the hook that writes checkpoints."""

from __future__ import annotations

import math
import signal
import sys
import threading
import time
from typing import Any

from ... import __version__
from ...arguments import check_count
from ...parallel.joining import LeftTogether
from ...training.data import Data
from ...training.hooks import Hook
from ...training.large.streamed import Streamed
from ...training.resuming import state
from ...training.run import Run
from ...training.validation import Validation
from .. import saving
from ..serialization import described
from .every import Every
from .folder import Folder
from .identity import digest
from .parts import parted
from .values import packed

VERSION = 2  # of the format of checkpoints
TERMINATED = 128 + signal.SIGTERM  # the status of a process that SIGTERM ended
APART = 8  # steps between which several ranks do not wait for each other


class Saver(Hook):
    """Writes checkpoints during a fit, and goes on from one. It is the last hook, so that the other hooks are done.

    A checkpoint is written at the interval `every`, at the end of the fit, when SIGTERM arrives, which then ends the process
    with status 143, and when Ctrl-C ends training between two steps. It holds all that the next step depends on, so nothing
    that the fit computes depends on when checkpoints are written. But all weights are brought up to date after each epoch, so
    that fits of other numbers of epochs have the same state then; where `SGD` defers updates, this changes weights by rounding.
    Weights that are not finite are not saved.

    If several ranks train one model, they agree every `APART` steps whether a signal has come or the time has passed, and rank
    0 writes a file, with what differs between ranks. SIGTERM to one of them ends all. Ctrl-C may stop them at different steps:
    it writes none.

    Parameters
    ----------
    folder : str or path
        The folder of the checkpoints of this fit.
    every : "epoch", int or str
        As for `Every`.
    keep : int
        Number of checkpoints to keep; older ones are deleted.
    arguments : dict
        The other arguments of `fit`, which the resumed fit takes as well.

    Raises
    ------
    ValueError
        If an argument is invalid; when training starts, if the folder has checkpoints of another fit.
    """

    watches = False
    settles = True

    def __init__(self, folder: Any, every: Any, keep: Any, arguments: dict[str, Any]) -> None:
        self.every, self.keep = Every(every), check_count("keep", keep)
        self.folder, self.arguments = Folder(folder), arguments
        self.asked, self.number, self.last = False, 0, 0.0
        self.at: tuple[int, int] | None = None  # epoch and step of the last checkpoint of this run
        self.going: Any = None  # the checkpoint from which the fit goes on
        self.before: Any = None  # the handler of SIGTERM

    def join(self, run: Run, data: Data) -> None:
        """Become the last hook of a run on `data`; check the data if the run goes on from a checkpoint.

        Raises
        ------
        ValueError
            If the data are not those of the checkpoint, or have another order at each reading, or the folder has checkpoints
            of another fit.
        """
        net = run.estimator
        if isinstance(data, Streamed) and not data.repeats:
            raise ValueError(
                "checkpoint: batches came in another order when they were read again, so that a fit could not go on with the "
                "same ones: give a list, or a function of the epoch whose result depends on the epoch alone"
            )
        others = [hook.data for hook in run.hooks if isinstance(hook, Validation)]
        self.data = digest(data, others, run.dev)
        self.going = net._unfinished
        if run.speaks:
            self.folder.make()
        numbers = self.folder.numbers()
        if self.going is None and numbers:
            raise ValueError(
                f"checkpoint: {str(self.folder.path)!r} has checkpoints of another fit: go on with it by "
                f"{type(net).__name__}.resume({str(self.folder.path)!r}).fit(...), or give an empty folder"
            )
        if self.going is not None:
            self.going.check_data(self.data)
        self.number = max(numbers, default=0)
        run.append(self)
        run.stepper.remember(True)

    # --- events -------------------------------------------------------------------------------------------------------
    def fit_start(self, run):
        self._content(run, trial=True)  # called only for its errors
        self.last, net = time.monotonic(), run.estimator
        if self.going is not None:
            state.restore(run, self.going.state)
            net._wait_with(None)
            if not state.within(self.going.state):
                self.going = None
        if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            self.before = signal.signal(signal.SIGTERM, self._ask)

    def epoch_start(self, run, epoch):
        if self.going is not None:
            state.restore(run, self.going.state, entered=True)
            self.going = None

    def between_steps(self, run):
        steps, ranks = run.optimizer.steps, run.stepper.ranks is not None
        leaves, due = self.asked and not ranks, self.every.due(steps, self.last)
        if ranks and steps % APART == 0:
            run.stepper.finish()  # queued steps exchange gradients
            leaves, due = run.any(self.asked, due)
        elif ranks and self.every.steps is None:
            due = False
        if leaves or due:
            self._save_within(run)
        if leaves:
            self._leave()

    def epoch_recorded(self, run, record):
        leaves, due, last = run.any(self.asked, self.every.due(1, self.last), not run.goes_on)
        if leaves or due or last or self.every.interval == "epoch":
            self._save(run)
        if leaves:
            self._leave()

    def interrupted(self, run):
        if run.stepper.ranks is None and self.at != (run.epoch, len(run.done)):
            self._save_within(run)

    def fit_end(self, run):
        run.stepper.remember(False)
        if self.before is not None:
            signal.signal(signal.SIGTERM, self.before)
            self.before = None
            if self.asked and sys.exc_info()[0] is None:  # the signal came after the last step; an exception goes first
                if run.stepper.ranks is not None:
                    raise SystemExit(TERMINATED)  # the others may not know, and are told
                self._leave()

    def _ask(self, number: int, frame: Any) -> None:
        """The handler of SIGTERM: training saves and ends after the current step."""
        self.asked = True

    def _leave(self) -> None:
        self.asked = False
        raise LeftTogether(TERMINATED)

    # --- files --------------------------------------------------------------------------------------------------------
    def _save_within(self, run: Run) -> None:
        """Save between two steps, unless the weights are not finite."""
        run.stepper.finish()
        fine = (not run.done or math.isfinite(run.done[-1][1].loss.item())) and run.finite()
        if not any(run.any(not fine)):
            self._save(run)

    def _save(self, run: Run) -> None:
        self.number += 1
        content = self._content(run)
        if run.speaks:
            self.folder.write(self.number, content, self.keep)
            way = f"{type(run.estimator).__name__}.resume({str(self.folder.path)!r}).fit(...)"
            run.saved(f"; {way}, with the same data, goes on from its last checkpoint")
        run.any()  # no rank leaves before the file is written
        self.last, self.at = time.monotonic(), (run.epoch, len(run.done))

    def _content(self, run: Run, trial: bool = False) -> bytes:
        """Return the content of a file; b"" if it is a trial, which only raises errors.

        Raises
        ------
        TypeError
            If a layer, or the state of a hook, cannot be saved.
        """
        missing: list[str] = []
        net = run.estimator
        try:
            metadata, arrays = saving.packed(net, missing)
            arguments = {name: described(value) for name, value in self.arguments.items() if value is not None}
            common, own = parted(state.captured(run), run, self.data)
            whole = {
                "state": packed(common, run.model, arrays),
                "ranks": packed(own if trial else run.gathered(own), run.model, arrays),
            }
        except TypeError as error:
            raise TypeError(f"checkpoint: {error}") from error
        if trial or not run.speaks:
            return b""
        about = {
            "format": VERSION,
            "numbanet": __version__,
            "epochs": len(run.epochs),
            "missing": missing,
            "arguments": arguments,
            "every": self.every.interval,
            "keep": self.keep,
        }
        return saving.serialised({**metadata, "checkpoint": {**about, **whole}}, arrays)
