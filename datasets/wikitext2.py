"""WikiText-2: the text of 720 Wikipedia articles, with a vocabulary of 33,278 words; rare words are replaced by `<unk>`."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from .files import check_digest, download_file, find_file, read_file, search_folders
from .words import SPLITS, Texts, parse_words

# --- the original files: their URLs, and the SHA-256 of the decompressed content --------------------------------------
# The URL of the authors' archive, wikitext-2-v1.zip, no longer works. PyTorch's examples have the same files under other names.
WIKITEXT2_MIRRORS = (
    "https://raw.githubusercontent.com/pytorch/examples/77f55b912142e11fcfdf5b530231fb9c52f181e8/"
    "word_language_model/data/wikitext-2/",
)
WIKITEXT2_DIGESTS = {
    "train": "9e9fa1ad55b1c2c95b08e37dd8e653f638fac2c6de904b79e813611eefbc985f",
    "valid": "f0737ed31fc1329026e95cb8b98e19c2a182c39c240ab909dc31abf2f8af58e8",
    "test": "d790b833ef8cf03a90db7bf1271b7520b83c45ce07ba3c1a9699df81e239eca0",
}


# --- loader -----------------------------------------------------------------------------------------------------------
def load_wikitext2(folder: str | os.PathLike[str] | None = None, download: bool = True) -> Texts:
    """WikiText-2, word level: 2,088,628 words for training, 217,646 for validation, and 245,569 for test.

    Parameters
    ----------
    folder : path, optional
        The folder of the three files: `wiki.train.tokens`, `wiki.valid.tokens` and `wiki.test.tokens`, which may have the
        ending `.gz`; or `train.txt`, `valid.txt` and `test.txt`, their names in PyTorch's examples. By default
        `$NUMBANET_DATA/wikitext2` if it has them, else `wikitext2` in numbanet's folder of the user's cache.
    download : bool, default True
        Download missing files (13 MB in all) to `folder`, or to the cache if `folder` is None.

    Returns
    -------
    train, valid, test : lists of str
        The words in order, with `<eos>` after each line. Equal words are the same object, to save memory.

    Raises
    ------
    FileNotFoundError
        If a file is missing, and `download` is False or no mirror delivers it.
    ValueError
        If a file is truncated, corrupt, or not the original.

    References
    ----------
    S. Merity, C. Xiong, J. Bradbury, R. Socher, "Pointer Sentinel Mixture Models", arXiv:1609.07843, 2016. The text is
    Wikipedia's, under CC BY-SA 3.0.

    Examples
    --------
    >>> train, valid, test = load_wikitext2()  # doctest: +SKIP
    """
    return load_texts(search_folders("wikitext2", folder), WIKITEXT2_MIRRORS, WIKITEXT2_DIGESTS, download)


def load_texts(folders: Sequence[Path], mirrors: Sequence[str], digests: Mapping[str, str], download: bool) -> Texts:
    """Find or download the three files, check and parse them: the lists of words for training, validation and test."""
    known: dict[str, str] = {}
    return tuple(parse_words(*read_text(split, folders, mirrors, digests[split], download), known) for split in SPLITS)


def read_text(split: str, folders: Sequence[Path], mirrors: Sequence[str], sha256: str, download: bool) -> tuple[bytes, Path]:
    """(the decompressed content of a file, its path); `sha256` is that of the decompressed content."""
    names = [f"wiki.{split}.tokens.gz", f"wiki.{split}.tokens", f"{split}.txt"]
    path = find_file(folders, names)
    if path is None:
        searched = f"WikiText-2: none of {', '.join(names)} is in {' or '.join(map(str, folders))}"
        if not download:
            raise FileNotFoundError(
                f"{searched}. Put one there, or allow the download, or set NUMBANET_DATA to a folder with "
                f"{folders[-1].name}/ in it"
            )
        try:
            path = download_file(names[-1], folders[-1], mirrors, sha256)
        except FileNotFoundError as error:
            raise FileNotFoundError(f"{searched}, and {error}") from error
    content = read_file(path)
    check_digest(content, sha256, path)
    return content, path
