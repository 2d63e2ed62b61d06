"""The table of the operations of the CPU; names and signatures are the same on every device."""

from .runtime.tape import recordable as _recordable
from .tables import collected as _collected

globals().update({name: _recordable(name, function) for name, function in _collected("cpu").items()})
