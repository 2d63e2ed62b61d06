"""python -m numbanet: the same as the command `numbanet`, for use without installing it."""

import sys

from .cli import main

sys.exit(main())
