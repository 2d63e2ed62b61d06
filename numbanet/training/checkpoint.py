"""ModelCheckpoint: saves the estimator after each epoch, or after each best one."""

from __future__ import annotations

import math
import os

from ..arguments import check_target
from .hooks import Hook, monitored


class ModelCheckpoint(Hook):
    """Saves the estimator during training; use `callbacks=[ModelCheckpoint("best.safetensors")]`. The method `load` of the
    estimator's class, such as `Net.load`, reads the file.

    Parameters
    ----------
    path : str or path
        The file, which is replaced atomically. Fields in braces are filled from the record: "epoch-{epoch:03d}.safetensors"
        writes a file per epoch.
    monitor : str or None, default=None
        The figure of the record that defines the best epoch. Figures whose names end in "loss", "perplexity" or "seconds" are
        minimised, other figures are maximised. If it is None, the figure is validation_score if there is validation, else loss.
    save_best_only : bool, default=True
        If True, only epochs that are better than all earlier ones of this fit, and with `partial_fit` of earlier calls, are
        saved. Epochs in which the network is still becoming sparse are skipped, because they cannot be the result. If False,
        every epoch is saved, and `monitor` is not used.

    Raises
    ------
    ValueError
        If `save_best_only` is not a bool; in training, if the record does not contain the figure or a field of the path.
    TypeError, OSError
        If the path is not a str or path; before the first epoch, if there is no such folder, or a file cannot hold a parameter
        or a layer of the estimator; in training, as raised by the estimator's `save`.

    Notes
    -----
    A saved file does not contain this hook, because the hook writes files: the callbacks of a loaded estimator do not include
    it.
    """

    def __init__(self, path: str | os.PathLike, monitor: str | None = None, save_best_only: bool = True) -> None:
        if not isinstance(save_best_only, bool):
            raise ValueError(f"ModelCheckpoint: save_best_only must be True or False, got {save_best_only!r}")
        self.path, self.monitor, self.save_best_only = os.fspath(path), monitor, save_best_only
        self.best = -math.inf

    def fit_start(self, run):
        if run.epoch == 0:
            self.best = -math.inf

    def check(self) -> None:
        """Raise an OSError if the folder is missing. A folder that has fields of the record is known only after an epoch."""
        if not {*"{}"} & {*os.path.dirname(self.path)}:
            check_target(self.path)

    def epoch_recorded(self, run, record):
        if self.save_best_only:
            figure = monitored("ModelCheckpoint", record, self.monitor)
            if not (run.final and figure > self.best):
                return
            self.best = figure
        try:
            path = self.path.format(**record)
        except (KeyError, IndexError, ValueError) as error:
            raise ValueError(f"ModelCheckpoint: path {self.path!r} cannot be filled from the record: {error!r}") from error
        if run.speaks:
            run.estimator.save(path)

    def state(self):
        return self.best

    def restore(self, state):
        self.best = state
