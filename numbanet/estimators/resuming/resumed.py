"""`resumed`: the estimator of a fit that was stopped, and what the next call of its `fit` needs."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

from ... import __version__
from ...parallel.checks import same
from ...parallel.ranks import Ranks
from ...training.optim import on_host
from ...user_warnings import warn
from .. import saving
from ..serialization import described, made
from ..settings import FitSettings
from .folder import Folder
from .identity import FREE, check_epochs, check_parameters
from .saver import VERSION, Saver
from .values import unpacked

READS = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


@dataclasses.dataclass
class Unfinished:
    """A checkpoint that was read, until `fit` goes on from it.

    Attributes
    ----------
    where : str
        The folder.
    about : dict
        The entry "checkpoint" of the file's metadata.
    parameters : dict
        JSON of the parameters that the fit was started with.
    state : dict
        The state of the run (`training.resuming.state`); without what differs between ranks, until `take`.
    ranks : list of dict
        What each rank had of its own (`parts`).
    number : int
        The number of the file.
    """

    where: str
    about: dict[str, Any]
    parameters: dict[str, Any]
    state: dict[str, Any]
    ranks: list[dict[str, Any]]
    number: int
    own: dict[str, Any] = dataclasses.field(default_factory=dict)

    def take(self, team: Ranks | None) -> None:
        """Add what the rank of this process had of its own; raise ValueError if the number of ranks has changed."""
        size, rank = (1, 0) if team is None else (team.size, team.rank)
        if size != len(self.ranks):
            raise ValueError(
                f"resume: the checkpoint in {self.where} was written by {len(self.ranks)} process(es), and {size} resume it: "
                f"start {len(self.ranks)}"
            )
        if team is not None:
            same(team, {"checkpoint": (self.where, self.number)})
        self.own = self.ranks[rank]
        self.state.update(self.own["state"])

    def saver(self, folder: Any, every: Any, keep: Any, arguments: dict[str, Any]) -> Saver:
        """Return the hook that saves the resumed fit; by default into the folder of the stopped one, as often, and keeping as
        many checkpoints."""
        folder = self.where if folder is None else folder
        every = self.about["every"] if every is None else every
        return Saver(folder, every, self.about["keep"] if keep is None else keep, self.arguments(arguments))

    def arguments(self, given: dict[str, Any]) -> dict[str, Any]:
        """Return the arguments with which the stopped `fit` was called, such as `dropout`; raise ValueError if `given` holds
        another value for one of them.
        """
        saved = made({"dict": list(self.about["arguments"].items())})
        for name, value in given.items():
            if value is not None and described(value) != described(saved.get(name)):
                raise ValueError(f"resume: fit was called with {name}={saved.get(name)!r}, and goes on with it; leave it out")
        return saved

    def check(self, net: Any, settings: FitSettings, samples: int | None, arguments: dict[str, Any]) -> None:
        """Raise ValueError if a parameter of the estimator has changed that must not change."""
        check_parameters(self.parameters, saving.packed(net, [])[0]["parameters"], self.where)
        check_epochs(net, settings, self.about, samples, arguments)

    @property
    def streams(self) -> list[Any]:
        """The states of the random streams when the fit was started."""
        return self.own["start"]

    def check_data(self, found: str) -> None:
        """Raise ValueError unless the data have the digest of the checkpoint."""
        if found != self.own["data"]:
            raise ValueError(
                f"resume: the data are not those of the checkpoint in {self.where}: pass the same X, y, sample_weight and "
                "validation in the same order, or fit anew without resume"
            )


def resumed(kind: type, folder: str | os.PathLike, parameters: dict[str, Any]) -> Any:
    """Return the estimator of the newest checkpoint in a folder (`Estimator.resume`)."""
    files, where = Folder(folder), os.fspath(folder)
    files.check("resume")
    if not (numbers := files.numbers()):
        raise FileNotFoundError(f"resume: there is no checkpoint in {where!r}; start with fit(..., checkpoint={where!r})")
    for left, number in zip(range(len(numbers) - 1, -1, -1), numbers):
        name = os.fspath(files.file(number))
        try:
            metadata, arrays = saving.read(name)
            break
        except (ValueError, FileNotFoundError) as error:  # another rank may have set it aside
            if not left:
                raise
            files.set_aside(number)
            warn(f"resume: {error}; it is renamed to damaged-…, and the checkpoint before is used")
    about = metadata.get("checkpoint")
    if not about:
        raise ValueError(f"{name} is no checkpoint, but a saved estimator: use {metadata.get('class')}.load")
    if about["format"] != VERSION:
        raise ValueError(
            f"{name} has format {about['format']} of checkpoints, and this is format {VERSION}: go on with the numbanet that "
            "wrote it"
        )
    if about["numbanet"] != __version__:
        raise ValueError(
            f"{name} was written by numbanet {about['numbanet']}, and this is {__version__}, which may compute other bits: go "
            "on with the version that wrote it"
        )
    _check_given(name, about["missing"], metadata["parameters"], parameters)
    weights = {key: array for key, array in arrays.items() if not key.startswith("run/")}
    net, model = saving.unpacked((kind,), name, metadata, weights, parameters)
    net._resume(model, net._settings(None, None))
    try:
        state, ranks = (unpacked(about[part], model, arrays) for part in ("state", "ranks"))
    except READS as error:
        raise ValueError(f"{name} cannot be read: {type(error).__name__}: {error}") from error
    optimizer = net.optimizer_
    optimizer.restore(state["optimizer"])
    late = [(i, optimizer.parameters[i]) for i in state["optimizer"].get("lazy", {})]
    state["deferred"] = {i: on_host(p.device, p.data) for i, p in late}
    optimizer.settle()  # so that the estimator can predict before it goes on
    net._wait_with(Unfinished(where, about, metadata["parameters"], state, ranks, number))
    return net


def _check_given(name: str, missing: list[str], saved: dict[str, Any], given: dict[str, Any]) -> None:
    """Raise ValueError if a parameter is given that must not change, or if one is missing that the file could not hold."""
    for parameter, value in given.items():
        if parameter in saved and parameter not in FREE and described(value) != saved[parameter]:
            raise ValueError(
                f"resume: {name} was written with {parameter}={made(saved[parameter])!r}, which must not change; only "
                f"{', '.join(FREE)} may"
            )
    for parameter in missing:
        if parameter not in given and parameter != "random_state":
            raise ValueError(
                f"resume: {name} cannot hold {parameter}, which was a function or an object of a user's class: give it again, "
                f"resume(..., {parameter}=...)"
            )
