"""`CardSums`: sums over ranks of arrays in the memory of NVIDIA's GPUs, by NCCL (nccl4py): nothing is copied to the host."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from typing import Any

from ..device import Device
from ..user_warnings import warn
from .ranks import Ranks


class CardSums:
    """Sums arrays of GPUs over the ranks, each of which has a GPU of its own, on a second stream: kernels that are launched
    afterwards run beside the sums.

    Parameters
    ----------
    ranks : Ranks
        They create the communicator of NCCL, and notice a rank that has failed, for which NCCL would wait for ever.
    second : SecondStream
        On which NCCL works.
    """

    def __init__(self, ranks: Ranks, second: Any) -> None:
        import nccl.core as nccl

        unique = ranks.broadcast(bytes(nccl.get_unique_id()) if ranks.first else None)
        self.ranks, self.nccl, self.second = ranks, nccl, second
        self.communicator = nccl.Communicator.init(ranks.size, ranks.rank, nccl.UniqueId.from_bytes(unique))

    def start(self, arrays: Sequence[Any]) -> Callable[[], None]:
        """Start to replace contiguous arrays by their sums over the ranks; the function that is returned waits until this is
        complete, and keeps the arrays alive until then.
        """
        self.second.follow()
        with self.nccl.group():  # one launch
            for array in arrays:
                self.communicator.allreduce(array, array, self.nccl.SUM, stream=self.second.stream)
        done, kept = self.second.end(), list(arrays)

        def finish() -> None:
            try:
                self.ranks.wait(done)
            except BaseException:
                self.communicator.abort()  # or the GPU would wait for the rank that has failed
                raise
            kept.clear()

        return finish


def card_sums(ranks: Ranks, dev: Device) -> CardSums | None:
    """Return the sums of the GPUs of these ranks; None if gradients have to be summed by the ranks on the host: not each rank
    has a GPU of its own, or nccl4py is missing, of which rank 0 warns. All ranks call this function.
    """
    second = dev.second_stream() if ranks.size > 1 else None
    gpu, problem = None, ""
    if second is not None:
        gpu = socket.gethostname(), second.gpu
        try:
            import nccl.core  # noqa: F401
        except (ImportError, RuntimeError, OSError) as error:  # RuntimeError: it finds no library of NCCL
            problem = str(error) or type(error).__name__
    gpus, problems = zip(*ranks.gather((gpu, problem)))
    if None in gpus or len(set(gpus)) < ranks.size:
        return None
    if any(problems):
        if ranks.first:
            told = next(filter(None, problems))
            warn(f"parallel: gradients are summed by the host, because NCCL is missing ({told}): pip install 'numbanet[nccl]'")
        return None
    return CardSums(ranks, second)
