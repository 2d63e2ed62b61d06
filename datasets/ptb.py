"""Penn Treebank in T. Mikolov's version. The user must provide the files, because their licence forbids redistribution."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from .files import find_file, read_file, search_folders
from .words import SPLITS, Texts, parse_words


def load_ptb(folder: str | os.PathLike[str] | None = None) -> Texts:
    """Penn Treebank, word level: the words of the files ptb.train.txt, ptb.valid.txt and ptb.test.txt.

    Nothing is downloaded: the Linguistic Data Consortium licenses the text (LDC99T42). In T. Mikolov's version, on which papers
    measure perplexity, the files have 929,589, 73,760 and 82,430 words; the vocabulary has 10,000. Files of other versions load
    too.

    Parameters
    ----------
    folder : path, optional
        The folder of the three files, which may have the ending `.gz`: UTF-8, one sentence per line, words separated by spaces.
        By default `$NUMBANET_DATA/ptb` if it has them, else `ptb` in numbanet's folder of the user's cache.

    Returns
    -------
    train, valid, test : lists of str
        The words in order, with `<eos>` after each line. Equal words are the same object, to save memory.

    Raises
    ------
    FileNotFoundError
        If a file is missing.
    ValueError
        If a file is empty, is not text in UTF-8, or is a truncated `.gz`.

    References
    ----------
    M. Marcus, M. A. Marcinkiewicz, B. Santorini, "Building a Large Annotated Corpus of English: The Penn Treebank",
    Computational Linguistics 19(2), 1993. T. Mikolov, M. Karafiát, L. Burget, J. Černocký, S. Khudanpur, "Recurrent
    neural network based language model", Interspeech 2010. W. Zaremba, I. Sutskever, O. Vinyals, "Recurrent Neural
    Network Regularization", arXiv:1409.2329, 2014, for `<eos>`.

    Examples
    --------
    >>> train, valid, test = load_ptb("simple-examples/data")  # doctest: +SKIP
    """
    folders = search_folders("ptb", folder)
    paths = [find_text(f"ptb.{split}.txt", folders) for split in SPLITS]
    known: dict[str, str] = {}
    return tuple(parse_words(read_file(path), path, known) for path in paths)


def find_text(name: str, folders: Sequence[Path]) -> Path:
    """The path of `name`.gz or `name` in one of `folders`; FileNotFoundError if no folder has one."""
    path = find_file(folders, (f"{name}.gz", name))
    if path is None:
        raise FileNotFoundError(
            f"{name}.gz or {name} is missing: it was expected in {' or '.join(map(str, folders))}. "
            "The licence of Penn Treebank forbids passing it on, so it cannot be downloaded: put your own "
            "ptb.train.txt, ptb.valid.txt and ptb.test.txt there, one sentence a line, or set "
            "NUMBANET_DATA to a folder with ptb/ in it. load_wikitext2() has free text of twice the size"
        )
    return path
