"""The operations on tensors. Each computes its formula on the device, and has one vjp (vector-Jacobian product) per input.

In the docstrings x, a, b and w are input tensors, y is the result, and dy is its gradient. In shapes, N is the batch size, I
the number of inputs, O the number of outputs, and K the number of kept ones.
"""

# ruff: noqa: F403  every public name of these modules is exported
from .border import pad2d as pad2d
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
