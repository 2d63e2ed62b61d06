"""`Estimator`: the base class of all estimators. It makes training runs, and saves and loads estimators."""

from __future__ import annotations

import abc
import math
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from ..device import Device
from ..dropout import Dropout, NoDropout, SkewNormalSchedule, Together
from ..layers import Sequential, to
from ..parallel import current
from ..parallel.checks import agreed
from ..training.checkpoint import ModelCheckpoint
from ..training.data import Data
from ..training.hooks import Callback, Hook
from ..training.progress import Progress
from ..training.run import Run
from ..training.schedule import DropoutRates, LearningRate
from ..training.sparsity import Reordering
from ..training.stepper import Stepper
from ..training.streams import Streams
from ..training.task import Task
from ..training.validation import BatchStatistics, EarlyStopping, Validation
from ..user_warnings import warn
from . import saving
from .build import some
from .joint import Joint
from .parameters import SHARED
from .resuming.saver import Saver
from .settings import FitSettings, Settings


class Estimator(Settings):
    """Base class of the estimators. A subclass builds the network and the data, and says which settings determine the
    network (`_architecture`).
    """

    _unfinished: Any = None  # the checkpoint with which the next fit goes on
    _kept_epoch: int | None = None  # the number of the epoch whose weights early stopping kept; None for the last epoch
    _fit_epochs: int | None = None  # the number of epochs that the last fit was to have

    # --- files --------------------------------------------------------------------------------------------------------
    def save(self, path: str | os.PathLike, card: bool = False) -> None:
        """Write the trained estimator to one safetensors file. Parameters and buffers have the names of `model_.state_dict()`;
        everything else is in the metadata.

        The state of the optimiser, the random streams and the progress of `sparsity` are not saved. So `partial_fit` of a
        loaded estimator starts with a new optimiser and new streams, does not preserve sparsity, and warns about that; `fit`
        starts `sparsity` again. Layers that the user passed (`layers`) are saved with their trained weights, from which `fit`
        of the loaded estimator starts; its clones, as in a cross-validation, start from new ones. Frozen tensors
        (`requires_grad`) stay frozen. Callbacks are not saved, because files hold no functions, except for hooks of numbanet
        that consist of numbers and names, such as `ReduceLROnPlateau`. A callback may save the estimator.

        Parameters
        ----------
        path : str or path
            The file; it is replaced atomically.
        card : bool, default=False
            If True, also write `numbanet.io.model_card` to a file of the same name with the ending .md, instead of .safetensors
            if the name has that.

        Raises
        ------
        TypeError
            If a setting or a layer is an object of a user's class, or a function. The message says what to do instead.
        ValueError
            If the card would have the name of the file.
        FileNotFoundError, IsADirectoryError, PermissionError
            If the file cannot be written.
        sklearn.exceptions.NotFittedError
            If the estimator is not fitted.
        """
        if card and Path(path).suffix == ".md":
            raise ValueError(f"save: the card would replace the network in {str(path)!r}: give it another ending than .md")
        saving.save(self, path, card=card)

    def export(self, path: str | os.PathLike) -> None:
        """Write the predictions of the trained estimator as an ONNX file; `numbanet.io.export` describes it, and its errors."""
        from ..io import export

        export(self, path)

    def report(self, path: str | os.PathLike, X: Any = None, y: Any = None, data: str | None = None) -> None:
        """Write what the training was, and what it reached, as one HTML page; `numbanet.io.report` describes it."""
        from ..io import report

        report(self, path, X, y, data)

    @classmethod
    def load(cls, path: str | os.PathLike, device: str | Device | None = None) -> Estimator:
        """Load an estimator from a file that `save` wrote. Nothing in the file is executed or unpickled.

        Parameters
        ----------
        path : str or path
            A file that `save` wrote.
        device : str or Device, optional
            The device of the loaded estimator, for example "cpu" for a network that was trained on a GPU. By default it is the
            saved `device`.

        Raises
        ------
        ValueError
            If the file is truncated, damaged, of a newer version, or was not written by `save`; the message names it.
        FileNotFoundError, IsADirectoryError
            If the file does not exist, or is a folder.
        RuntimeError
            If the device is not available.
        """
        return saving.load((cls,), path, device)

    @classmethod
    def resume(cls, folder: str | os.PathLike, **parameters: Any) -> Estimator:
        """Return the estimator of a fit that was stopped, from its newest checkpoint (`fit`, checkpoint); `fit`, called with
        the same data, goes on with this fit to its end. On the CPU the result is that of a fit that was not stopped, to the
        last bit, if the number of threads is the same.

        Parameters
        ----------
        folder : str or path
            The folder of the checkpoints. If the newest file is damaged, the one before is used, with a warning.
        **parameters
            Parameters to change: `epochs`, `callbacks`, `device`, `n_jobs` and `verbose`; and those that a file cannot hold,
            such as functions, which must be given again.

        Raises
        ------
        FileNotFoundError
            If the folder has no checkpoint.
        ValueError
            If all checkpoints are damaged, or of another version of numbanet or another class; if a parameter must not change,
            or is missing. In `fit`, if the data are not those of the checkpoint.
        """
        from .resuming.resumed import resumed

        return resumed(cls, folder, parameters)

    def __getstate__(self):
        return {name: value for name, value in super().__getstate__().items() if name != "_undo"}

    # --- for subclasses -----------------------------------------------------------------------------------------------
    @abc.abstractmethod
    def _task(self) -> Task:
        """Return the task, which defines the loss, the score, and the batches of an epoch."""

    @abc.abstractmethod
    def _architecture(self) -> dict[str, Any]:
        """Return a dict of the parameters that determine the network."""

    @abc.abstractmethod
    def _sample(self) -> tuple[int, ...]:
        """Return the input shape of one sample (for a language model, of one word) for the table of `print(model)`."""

    # --- before training ----------------------------------------------------------------------------------------------
    def _goes_on(self, call: str) -> bool:
        """Return True if there is a network to continue from; raise ValueError if the parameters describe another one."""
        if not hasattr(self, "model_"):
            return False
        if self._unfinished is not None:
            raise ValueError(
                f"{call}: the estimator was resumed from {self._unfinished.where}, and fit goes on with it: call fit"
            )
        for name, value in self._architecture().items():
            if value != self._made_of.get(name, value):
                raise ValueError(
                    f"{call}: the network was made with {name}={self._made_of[name]!r} and is trained further; "
                    f"{name}={value!r} needs a new one: fit without warm_start, or set {name} back"
                )
        return True

    def _adopt(self, model: Sequential, settings: FitSettings, shape: tuple[int, ...], fresh: bool) -> None:
        """Start a fit of a new or a trained model with a new optimiser; `shape` is the shape of a batch of inputs."""
        if fresh:
            model = agreed(model)
            to(model, settings.device)
            self._undo.forget()
        model.expect(self._sample(), settings.policy)
        self.model_ = model
        self.history_: list[dict[str, Any]] = []
        self._fit_epochs = settings.epochs
        self.optimizer_, self._made_of = self._new_optimizer(model), self._architecture()
        self._sparsity = self.sparsity
        self._thinning = None
        if self.sparsity is not None:
            begin = self.sparsity.begin if fresh else self.sparsity.further
            self._thinning = begin(model, shape, settings.epochs, next(model.parameters()).device)

    def _resume(self, model: Sequential, settings: FitSettings) -> None:
        """Continue from a loaded model, without changing its sparsity, with a new optimiser."""
        to(model, settings.device)
        self.model_, self.optimizer_ = model, self._new_optimizer(model)
        self._made_of = vars(self).get("_made_of", self._architecture())
        self.policy_ = getattr(self, "policy_", settings.policy)
        model.expect(self._sample(), self.policy_)
        self._streams, self._sparsity, self._thinning = self._new_streams(), None, None

    def _wait_with(self, unfinished: Any) -> None:
        """Set the checkpoint with which the next fit goes on, or None."""
        self._unfinished = unfinished
        if unfinished is not None and self.history_:
            self.n_iter_ = len(self.history_)  # within an epoch the file counts this epoch, too

    def _start_again(
        self, settings: FitSettings, shape: tuple[int, ...], samples: int | None, arguments: dict[str, Any]
    ) -> None:
        """Start the fit that goes on from a checkpoint: the counterpart of `_start`.

        Raises
        ------
        ValueError
            If a parameter has changed that must not change.
        """
        self._unfinished.check(self, settings, samples, arguments)
        self._streams.restore(self._unfinished.streams)
        model, sparsity = self.model_, self.sparsity
        self.optimizer_, self._made_of, self._sparsity = self._new_optimizer(model), self._architecture(), sparsity
        self._thinning = None if sparsity is None else sparsity.again(model, shape, settings.epochs, settings.device)
        model.expect(self._sample(), settings.policy)

    def _saver(self, checkpoint: Any, every: Any, keep: Any, **arguments: Any) -> Saver | None:
        """Return the hook that writes the checkpoints of a fit, which was called with `arguments`; None if it writes none."""
        if self._unfinished is not None:
            self._unfinished.take(current.get())
            return self._unfinished.saver(checkpoint, every, keep, arguments)
        if checkpoint is None:
            if every is not None or keep is not None:
                raise ValueError("every and keep are for checkpoints: give their folder, checkpoint='run/'")
            return None
        if getattr(self, "objective", None) is not None:
            raise ValueError(
                f"checkpoint: objective={self.objective!r} places layers by measured times, which differ between runs; leave "
                "objective=None, and choose the device"
            )
        return Saver(checkpoint, "epoch" if every is None else every, 2 if keep is None else keep, arguments)

    def _new_streams(self) -> Streams:
        seed, team = check_random_state(self.random_state).randint(2**31), current.get()
        return Streams.from_seed(seed) if team is None else Streams.of_rank(team.broadcast(seed), team.rank, team.sharded)

    def _warn_of_sparsity(self) -> None:
        """Warn if `sparsity` has changed since the network was started: `partial_fit` continues with the earlier value."""
        if self.sparsity != self._sparsity:
            warn(
                f"partial_fit: the network continues with sparsity={self._sparsity!r}, with which it was started or loaded; "
                f"fit starts anew, with {self.sparsity!r}, and with warm_start=True it continues from these "
                "weights with it"
            )

    # --- training -----------------------------------------------------------------------------------------------------
    def _run(self, settings: FitSettings, epochs: int, trained: bool) -> Run:
        """Return a run on the device of `settings`; a run that continues from trained weights can be undone."""
        stepper = Stepper(
            self.model_,
            self.optimizer_,
            settings.policy,
            self._task(),
            self._streams,
            settings.device,
            settings.batch_size,
            settings.session,
            ranks=current.get(),
        )
        users = [hook if isinstance(hook, Hook) else Callback(hook) for hook in self.callbacks or ()]
        first = 0 if self._unfinished else len(self.history_)
        run = Run(stepper, self.history_, range(first, first + epochs), users, self)
        if trained:
            self._undo.copy(run)
        run.move()
        return run

    def _hook(self, run: Run, settings: FitSettings, data: Data, validation: Validation | None, *others: Hook) -> None:
        """Insert the built-in hooks, in order, before the user's hooks."""
        chosen, count, samples = settings.policy, run.samples(len(data)), data.sample(run.dev)
        if self.verbose and chosen.reason and run.speaks:
            print(f"dropout: {chosen.reason}", flush=True)
        self._warn_of(chosen, run.epochs)
        self.policy_ = chosen
        hooks = [
            Joint(data) if run.stepper.ranks else None,
            DropoutRates(some(samples, run.dev, chosen)),
            settings.learning_rate_schedule and LearningRate(settings.learning_rate_schedule),
            data.hook(),
            *others,
            self._thinning,
            Reordering(chosen, (settings.batch_size, *self._sample())) if chosen.shuffle else None,
            BatchStatistics(samples, settings.batch_size, len(samples) == len(data) and not run.epochs.start),
            validation,
            settings.patience and EarlyStopping(settings.patience),
            Fitted(),
            Progress(count, run.epochs, _named(chosen)) if self.verbose and run.speaks else None,
        ]
        run.add(*(hook for hook in hooks if hook is not None))

    def _warn_of(self, chosen: Dropout, epochs: range) -> None:
        """Warn about unwise settings of a policy in some epochs."""
        if type(chosen) is NoDropout and chosen.rate not in (0, SHARED["dropout_rate"].default):
            said = f"dropout_rate={chosen.rate!r} drops nothing if dropout is 'none': choose 'window', 'rdp' or 'bernoulli'"
            warn(said, in_searches=False)
        given = self.dropout_rate
        own = [part for part in _parts(chosen) if type(part) is type(self.dropout) is not NoDropout]
        if own and not any(np.array_equal(given, rate) for rate in (own[0].rate, SHARED["dropout_rate"].default)):
            name = type(own[0]).__name__
            warn(f"dropout_rate={given!r} has no effect if dropout is a policy object: give the rate to {name}")
        policies = {tuple(part.rate for part in _parts(policy)): policy for policy in map(chosen.at, epochs)}.values()
        dropping = [part.rate for part in _parts(chosen) if type(part) is not NoDropout]
        rates = [rate for given in dropping for rate in (given if isinstance(given, tuple) else (given,))]
        cautions = [rate.caution(epochs) for rate in rates if isinstance(rate, SkewNormalSchedule)]
        cautions += [caution for policy in policies for caution in policy.cautions(self.model_)]
        for message in dict.fromkeys(filter(None, cautions)):
            warn(message)

    def _inference_policy(self) -> Dropout | None:
        """Return the policy that selects what predictions compute, in the epoch that the weights come from; None if there is
        none.
        """
        return self.policy_.inference_policy((self._kept_epoch or self.n_iter_) - 1)

    def _learned(self, run: Run, epochs: int, best: int | None, ended: bool = False) -> None:
        """Set the fitted attributes after `epochs` epochs, of which that with the number `best` has the best score on held-out
        samples; also the policy of the last epoch.
        """
        self.policy_, self.n_iter_ = run.stepper.policy, epochs
        stopping = next((hook for hook in run.hooks if isinstance(hook, EarlyStopping)), None)
        self._kept_epoch = stopping.best_epoch if stopping and ended else None
        self.best_epoch_ = stopping.best_epoch if stopping else best


class Fitted(Hook):
    """Updates the estimator's fitted attributes during training. Before, it checks that files can hold what hooks will save,
    and that a named scorer takes what an untrained network predicts.
    """

    watches = False

    def __init__(self) -> None:
        self.checked = False
        self.read = 0  # number of records that `best` has read
        self.found: tuple[float, int | None] = -math.inf, None  # the best score of these, and its epoch

    def best(self, run: Run) -> int | None:
        """Return the epoch of this call with the best score on held-out samples; None if there are no scores. Hooks may still
        add to the last record, so it is read each time; the others are read once.
        """
        history, first = run.history, run.epochs.start
        if len(history) <= self.read:  # training has returned to an earlier epoch
            self.read, self.found = 0, (-math.inf, None)
        self.found = _better(self.found, history[max(self.read, first) : -1])
        self.read = max(len(history) - 1, 0)
        return _better(self.found, history[max(self.read, first) :])[1]

    def epoch_start(self, run, epoch):
        run.estimator._learned(run, epoch + 1, self.best(run))
        if not self.checked:
            for hook in run.hooks:
                if isinstance(hook, ModelCheckpoint):
                    saving.check(run.estimator, type(hook).__name__)
                    if run.speaks:
                        hook.check()
                elif isinstance(hook, Validation) and _is_tried(run.estimator.scoring):
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        hook.scored()
            self.checked = True

    def epoch_recorded(self, run, record):
        run.estimator._learned(run, run.epoch, self.best(run))

    def fit_end(self, run):
        run.estimator._learned(run, run.epoch, self.best(run), ended=True)


def _better(found: tuple[float, int | None], records: list[dict[str, Any]]) -> tuple[float, int | None]:
    """Return the best score on held-out samples and its epoch: those of `found`, or of one of the records."""
    for record in records:
        score = record.get("validation_score", math.nan)
        if not math.isnan(score) and (found[1] is None or score > found[0]):
            found = score, record["epoch"]
    return found


def _is_tried(scoring: Any) -> bool:
    """Return True if `scoring` is a name, and not of a scorer that refuses negative predictions, as before training."""
    return isinstance(scoring, str) and not scoring.endswith(("_log_error", "_deviance"))


def _named(chosen: Dropout) -> str:
    """Return the name of a policy, for messages."""
    return "+".join(part.name for part in _parts(chosen))


def _parts(chosen: Dropout) -> tuple[Dropout, ...]:
    """Return the policies that a policy combines, or the policy itself if it combines none."""
    return chosen.policies if isinstance(chosen, Together) else (chosen,)
