"""`CardSums`: sums over ranks of arrays in the memory of NVIDIA's GPUs, by NCCL (nccl4py), without copies to the host."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Sequence
from typing import Any

from ..device import Device
from ..user_warnings import warn
from .ranks import RankFailure, Ranks


class CardSums:
    """Sums arrays of GPUs over the ranks, each of which has a GPU of its own, on a second stream: kernels that are launched
    afterwards run beside the sums.

    Parameters
    ----------
    ranks : Ranks
        They notice a rank that has failed, for which a GPU would wait for ever.
    second : SecondStream
        On which NCCL works.
    """

    def __init__(self, ranks: Ranks, second: Any) -> None:
        import nccl.core as nccl

        self.ranks, self.nccl, self.second = ranks, nccl, second
        self.kept: list[list[Any]] = []  # arrays that are being summed: their memory must not be used again before
        unique = ranks.broadcast(bytes(nccl.get_unique_id()) if ranks.first else None)
        self.communicator = self._initialised(nccl.UniqueId.from_bytes(unique))

    def _initialised(self, unique: Any) -> Any:
        """Return a communicator. It is made in a thread, because that waits for all ranks, of which one may fail."""
        found: list[Any] = []

        def work() -> None:
            try:
                self.second.enter()
                found.append(self.nccl.Communicator.init(self.ranks.size, self.ranks.rank, unique))
            except Exception as error:
                found.append(error)

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        self.ranks.wait(lambda: not thread.is_alive())
        if isinstance(found[0], Exception):
            raise found[0]
        return found[0]

    def start(self, arrays: Sequence[Any]) -> Callable[[], None]:
        """Start to replace contiguous arrays by their sums over the ranks; the function that is returned waits until this is
        complete.
        """
        kept = list(arrays)
        self.kept.append(kept)
        self.second.follow()
        with self.nccl.group():  # one launch
            for array in arrays:
                self.communicator.allreduce(array, array, self.nccl.SUM, stream=self.second.stream)
        ended = self.second.end()

        def done() -> bool:
            if self.communicator.get_async_error():
                raise RankFailure(f"NCCL: {self.communicator.get_last_error()}")
            return ended()

        def finish() -> None:
            self.ranks.wait(done)
            self.kept.remove(kept)

        return finish

    def abort(self) -> None:
        """End the sums that have been started, if any, because a rank has failed; afterwards nothing can be summed."""
        if self.kept:
            with contextlib.suppress(Exception):  # the reason of the failure counts
                self.communicator.abort()
            self.kept.clear()


def card_sums(ranks: Ranks, dev: Device) -> CardSums | None:
    """Return the sums of the GPUs of these ranks; None if gradients have to be summed by the ranks on the host: not each rank
    has a GPU of its own, or NCCL is missing, of which rank 0 warns. All ranks call this function.
    """
    base = getattr(ranks, "ranks", ranks)  # of a `Team`
    second = dev.second_stream() if ranks.size > 1 else None
    gpu, problem = None, ""
    if second is not None:
        gpu, problem = (socket.gethostname(), second.gpu), _problem()
    gpus, problems = zip(*ranks.gather((gpu, problem)))
    if None in gpus or len(set(gpus)) < ranks.size:
        return None
    if any(problems):
        if ranks.first:
            first = next(filter(None, problems))
            warn(f"parallel: gradients are summed by the host, because NCCL is missing ({first}): pip install 'numbanet[nccl]'")
        return None
    return base.keep_card_sums(lambda: CardSums(base, second))


def _problem() -> str:
    """Return what is missing for NCCL, or ""."""
    try:
        import nccl.core as nccl
    except (ImportError, RuntimeError, OSError) as error:
        return str(error) or type(error).__name__
    return "" if nccl.get_version().libnccl else "nccl4py finds no libnccl.so.2"
