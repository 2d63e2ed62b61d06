"""The operations on tensors: each computes its formula on the device, and returns one vjp per input.

x, y, a, b, w are tensors; dy is the gradient of the result. Shapes are in the docstrings: N batch, I in, O out, K kept.
"""

# ruff: noqa: F403  every public name of these modules is exported
from .compare import *
from .conv import *
from .elementwise import *
from .gru import *
from .linear import *
from .loss import *
from .norm import *
from .order import *
from .pooling import *
from .recurrent import *
from .reduce import *
from .sampled import *
from .shape import *
from .sparse import *
