"""Data sets: images, by `load_mnist` or another loader, as X_train, y_train, X_test, y_test; text, by `load_wikitext2` or
`load_ptb`, as train, valid, test, lists of words. A new one is a file in `datasets`, exported here: its loader and its name.

The loaders stand in the folder `datasets`, which a wheel installs as `numbanet/datasets/` and a checkout has next to
`numbanet/`. This module gives both one name. Next to the installed folder it wins, because a module goes before a
folder without `__init__.py`; and with one, the folder would hide Hugging Face's `datasets` in every checkout.
"""

from pathlib import Path
from typing import Any

_here = Path(__file__).resolve().parent
_places = (_here / "datasets", _here.parent / "datasets")
# Next to an installed numbanet, a folder `datasets` is Hugging Face's: so ours goes first, known by a file in it.
__path__ = [str(folder) for folder in _places if (folder / "idx.py").is_file()][:1]
if not __path__:
    raise ImportError(
        f"numbanet.datasets: its loaders are neither in {_places[0]} nor in {_places[1]}. "
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
    """The data set of a name in IMAGES or TEXTS, as its own loader gives it.

    Parameters
    ----------
    name : str
        "mnist" for `load_mnist`, "fashion-mnist" for `load_fashion_mnist`.
    options
        What that loader is given.

    Raises
    ------
    ValueError
        If there is none of that name.
    """
    if name not in (*IMAGES, *TEXTS):
        raise ValueError(f"there is no data set {name!r}; choose one of {', '.join(map(repr, (*IMAGES, *TEXTS)))}")
    return globals()[f"load_{name.replace('-', '_')}"](**options)
