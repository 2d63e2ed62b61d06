"""Estimator: what all estimators share, the training run and files."""

from __future__ import annotations

import abc
import os
from typing import Any

import numpy as np
from sklearn.utils import check_random_state

from ..device import Device
from ..dropout import Dropout, NoDropout, Together
from ..layers import Sequential, to
from ..training.data import Data
from ..training.hooks import Callback, Hook
from ..training.optim import Optimizer
from ..training.progress import Progress
from ..training.rates import Rates
from ..training.run import Run
from ..training.schedule import LearningRate
from ..training.stepper import Stepper
from ..training.streams import Streams
from ..training.task import Task
from ..training.user_warnings import warn
from ..training.validation import EarlyStopping, Validation
from . import saving
from .build import some
from .parameters import SHARED
from .settings import FitSettings, Settings


class Estimator(Settings):
    """Base of the estimators. A subclass makes network and data, and says what decides the network (`_architecture`)."""

    # --- files --------------------------------------------------------------------------------------------------------
    def save(self, path: str | os.PathLike) -> None:
        """Write the trained estimator to one safetensors file: parameters and buffers by the names of `model_.state_dict()`,
        all else in the metadata.

        The optimiser's state is not in it: `partial_fit` of a loaded estimator begins with a new one. Random streams begin
        anew, too, and so does what `sparsity` does: the loaded network is as sparse as the saved one, but `partial_fit` does
        not keep it so, and warns; `fit` begins with `sparsity` again. Layers that were given (`layers`) are kept as they were
        trained, and tensors that were frozen (`requires_grad`) stay frozen. Callbacks are left out, but for hooks of numbanet
        that are numbers and names alone, such as `ReduceLROnPlateau`: a file holds no functions. So an estimator can be saved
        within a callback.

        Parameters
        ----------
        path : str or path
            The file, which is replaced as a whole or stays as it was.

        Raises
        ------
        TypeError
            If a setting or a layer is of a class of one's own, or a function: files hold numbers and names. The message has the
            way out.
        FileNotFoundError, IsADirectoryError, PermissionError
            If no file can be written there.
        sklearn.exceptions.NotFittedError
            If nothing was trained.
        """
        saving.save(self, path)

    @classmethod
    def load(cls, path: str | os.PathLike, device: str | Device | None = None) -> Estimator:
        """The estimator that `save` wrote to a file. Nothing in the file is run or unpickled.

        Parameters
        ----------
        path : str or path
        device : str or Device, optional
            In place of the estimator's own, such as "cpu" for one that was trained on a card.

        Raises
        ------
        ValueError
            If the file is truncated, damaged, of a newer version, or holds something else; the message names it.
        FileNotFoundError
            If there is none.
        RuntimeError
            If the device is not there.
        """
        return saving.load((cls,), path, device)

    def __getstate__(self):
        return {name: value for name, value in super().__getstate__().items() if name != "_undo"}

    # --- what an estimator is -----------------------------------------------------------------------------------------
    @abc.abstractmethod
    def _task(self) -> Task:
        """What is learned."""

    @abc.abstractmethod
    def _architecture(self) -> dict[str, Any]:
        """The parameters that decide the network, by name."""

    @abc.abstractmethod
    def _sample(self) -> tuple[int, ...]:
        """The shape of what counts as one in tables of the network, without the axis along which there are more of them."""

    # --- before training ----------------------------------------------------------------------------------------------
    def _goes_on(self, call: str) -> bool:
        """Whether there is a network to go on from; ValueError if the parameters now say another one."""
        if not hasattr(self, "model_"):
            return False
        for name, value in self._architecture().items():
            if value != self._made_of.get(name, value):
                raise ValueError(
                    f"{call}: the network was made with {name}={self._made_of[name]!r}, and goes on with it; "
                    f"{name}={value!r} makes another one: fit it without warm_start, or set {name} back"
                )
        return True

    def _adopt(self, model: Sequential, settings: FitSettings, shape: tuple[int, ...], fresh: bool) -> None:
        """Begin a fit of a model, which is new or trained, with a new optimiser; the shape is that of a batch of inputs."""
        if fresh:
            to(model, settings.device)
            self._undo.forget()
        model.expect(self._sample(), settings.policy)
        self.model_ = model
        self.history_: list[dict[str, Any]] = []
        self.optimizer_, self._made_of = self._new_optimizer(model), self._architecture()
        self._sparsity = self.sparsity
        self._thinning = (
            None
            if self.sparsity is None
            else self.sparsity.begin(model, shape, settings.epochs, next(model.parameters()).device)
        )

    def _resume(self, model: Sequential, settings: FitSettings) -> None:
        """Go on from a model that was saved, whose sparsity stays as it is, with a new optimiser."""
        to(model, settings.device)
        self.model_, self.optimizer_, self._made_of = model, self._new_optimizer(model), self._architecture()
        self.policy_ = getattr(self, "policy_", settings.policy)
        model.expect(self._sample(), self.policy_)
        self._streams, self._sparsity, self._thinning = self._new_streams(), None, None

    def _new_streams(self) -> Streams:
        return Streams.from_seed(check_random_state(self.random_state).randint(2**31))

    def _new_optimizer(self, model: Sequential) -> Optimizer:
        """One for all parameters. Those that are frozen stay so, and are trained again when somebody thaws them."""
        parameters = list(model.parameters())
        optimizer = self._make_optimizer([tensor for tensor in parameters if tensor.requires_grad])
        optimizer.parameters[:] = parameters
        return optimizer

    def _warn_of_sparsity(self) -> None:
        """`partial_fit` goes on with the sparsity that the network has."""
        if self.sparsity != self._sparsity:
            warn(
                f"partial_fit: the network goes on with sparsity={self._sparsity!r}, with which it began, or was loaded; fit "
                f"begins anew, with {self.sparsity!r}"
            )

    # --- training -----------------------------------------------------------------------------------------------------
    def _run(self, settings: FitSettings, epochs: int, trained: bool) -> Run:
        """A run on the device of the settings; one that goes on from trained weights can be undone."""
        stepper = Stepper(
            self.model_,
            self.optimizer_,
            settings.policy,
            self._task(),
            self._streams,
            settings.device,
            settings.batch_size,
            settings.session,
        )
        users = [hook if isinstance(hook, Hook) else Callback(hook) for hook in self.callbacks or ()]
        run = Run(stepper, self.history_, range(len(self.history_), len(self.history_) + epochs), users, self)
        if trained:
            self._undo.copy(run)
        run.move()
        return run

    def _hook(self, run: Run, settings: FitSettings, data: Data, validation: Validation | None, *others: Hook) -> None:
        """Add what happens between the steps, in order, before the user's hooks."""
        chosen = settings.policy
        self._warn_of(chosen, run.epochs)
        self.policy_ = chosen
        hooks = [
            Rates(some(data, run.dev, chosen)),
            settings.learning_rate_schedule and LearningRate(settings.learning_rate_schedule),
            *others,
            self._thinning,
            validation,
            settings.patience and EarlyStopping(settings.patience),
            Fitted(),
            Progress(len(data), run.epochs, _named(chosen)) if self.verbose else None,
        ]
        run.add(*(hook for hook in hooks if hook is not None))

    def _warn_of(self, chosen: Dropout, epochs: range) -> None:
        """Say what is unwise about a policy in some epochs."""
        if type(chosen) is NoDropout and chosen.rate not in (0, SHARED["dropout_rate"].default):
            warn(f"dropout_rate={chosen.rate!r} drops nothing where dropout is 'none': choose 'bernoulli', 'rdp' or 'tdp'")
        policies = {tuple(part.rate for part in _parts(policy)): policy for policy in map(chosen.at, epochs)}.values()
        for message in dict.fromkeys(said for policy in policies for said in policy.cautions(self.model_)):
            warn(message)

    def _learned(self, run: Run, epochs: int) -> None:
        """What is known when so many epochs are done; within an epoch, of the policy that trains it."""
        self.policy_, self.n_iter_ = run.stepper.policy, epochs
        stopping = next((hook for hook in run.hooks if isinstance(hook, EarlyStopping)), None)
        scores = {
            record["epoch"]: record["validation_score"]
            for record in run.history
            if not np.isnan(record.get("validation_score", np.nan))
        }
        self.best_epoch_ = stopping.best_epoch if stopping else max(scores, key=scores.__getitem__, default=None)


class Fitted(Hook):
    """Tells the estimator what it has learned."""

    watches = False

    def epoch_start(self, run, epoch):
        run.estimator._learned(run, epoch + 1)

    def epoch_recorded(self, run, record):
        run.estimator._learned(run, run.epoch)

    def fit_end(self, run):
        run.estimator._learned(run, run.epoch)


def _named(chosen: Dropout) -> str:
    """The kind of dropout, in a word."""
    return "+".join(part.name for part in _parts(chosen))


def _parts(chosen: Dropout) -> tuple[Dropout, ...]:
    """The policies that act together, or the one."""
    return chosen.policies if isinstance(chosen, Together) else (chosen,)
