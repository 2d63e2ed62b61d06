"""The operations of the CUDA device: a flat table, the same names and signatures on every device."""

from .tables import collected as _collected

globals().update(_collected("cuda"))
