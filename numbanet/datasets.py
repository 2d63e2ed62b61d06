"""Data sets. Image loaders, such as `load_mnist`, return X_train, y_train, X_test, y_test; text loaders, `load_wikitext2` and
`load_ptb`, return train, valid, test as lists of words. To add one, put a file with a loader into `datasets` and export it
here.

The loaders are in the folder `datasets`. A wheel installs it as `numbanet/datasets/`; a checkout has it beside `numbanet/`.
This module makes both importable as `numbanet.datasets`. It takes precedence over the installed folder, because a module
precedes a folder without `__init__.py`. (With an `__init__.py`, the folder would shadow Hugging Face's `datasets` in every
checkout.)
"""

from pathlib import Path
from typing import Any

_here = Path(__file__).resolve().parent
_folders = (_here / "datasets", _here.parent / "datasets")
# An installed numbanet may have Hugging Face's folder `datasets` beside it. So the inner folder is tried first, and a folder
# counts only if it has idx.py.
__path__ = [str(folder) for folder in _folders if (folder / "idx.py").is_file()][:1]
if not __path__:
    raise ImportError(
        f"numbanet.datasets: its loaders are neither in {_folders[0]} nor in {_folders[1]}. "
        "Reinstall numbanet, or use a complete checkout"
    )

from numbanet.datasets.cifar10 import CIFAR10_CLASSES, load_cifar10  # noqa: E402  needs __path__
from numbanet.datasets.digits import load_digits  # noqa: E402
from numbanet.datasets.mnist import load_fashion_mnist, load_mnist  # noqa: E402
from numbanet.datasets.ptb import load_ptb  # noqa: E402
from numbanet.datasets.wikitext2 import load_wikitext2  # noqa: E402

__all__ = [
    "CIFAR10_CLASSES",
    "IMAGES",
    "TEXTS",
    "load",
    "load_cifar10",
    "load_digits",
    "load_fashion_mnist",
    "load_mnist",
    "load_ptb",
    "load_wikitext2",
]

IMAGES = ("digits", "mnist", "fashion-mnist", "cifar10")
TEXTS = ("wikitext2", "ptb")


def load(name: str, **options: Any) -> tuple:
    """Load the data set `name`, which must be listed in IMAGES or TEXTS.

    Parameters
    ----------
    name : str
        "mnist" for `load_mnist`, "fashion-mnist" for `load_fashion_mnist`.
    options
        Arguments of the loader.

    Raises
    ------
    ValueError
        If the name is unknown.
    """
    if name not in (*IMAGES, *TEXTS):
        raise ValueError(f"there is no data set {name!r}; choose one of {', '.join(map(repr, (*IMAGES, *TEXTS)))}")
    return globals()[f"load_{name.replace('-', '_')}"](**options)
