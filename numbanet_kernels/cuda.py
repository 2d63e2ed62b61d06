"""The table of the operations of CUDA devices; names and signatures are the same on every device."""

from .tables import collected as _collected

globals().update(_collected("cuda"))
