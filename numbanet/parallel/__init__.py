"""Training in several processes, the ranks: each one trains on its share of every batch, and only kept gradients travel.

ranks       the interface to a communicator, `Ranks`, and the ranks of the current fit
joining     starts the ranks of a fit, and tells them if one fails
mpi         ranks that are processes, over MPI (mpi4py)
threads     ranks that are threads of one process, for study and tests
watch       notices a rank that ended, and says so to the others
exchange    sums gradients over the ranks, in buckets
nccl        sums them in the memory of GPUs
scores      sums scores over the ranks, so that all choose alike
parts       the share of a rank of each batch
checks      what must be equal on all ranks, and what is refused
model       predicted times of steps by the number of ranks
"""

from .exchange import Exchange, NotFinite
from .joining import joined
from .nccl import card_sums
from .ranks import RankFailure, Ranks, current
from .scores import joint_scores
from .threads import run_ranks

__all__ = ["Exchange", "NotFinite", "RankFailure", "Ranks", "card_sums", "current", "joined", "joint_scores", "run_ranks"]
