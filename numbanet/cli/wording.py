"""Messages of the library in the words of the command line, which has options in place of Python's parameters."""

from __future__ import annotations

import argparse
import re
from collections.abc import Mapping

OTHERWISE = {"dropout_rate": "rate", "random_state": "seed", "parallel": "mpi"}  # parameters whose options have other names
CALLS = (  # what only Python has, and what stands for it here
    (r"\w+\.resume\(.*?\)\.fit\(\.\.\.\)(, with the same data,)?", "the same command with --resume"),
    (r"\w+\.resume of its folder", "numbanet train --checkpoint FOLDER --resume"),
    (
        "pass the same X, y, .* without resume",
        "give the same --data, --target, --test, --validation and --seed, or another --checkpoint",
    ),
    (r",? or (give a class|a policy object such as \w+\([\d.]+\)|a function that returns one for an epoch,)", ""),
)
VALUE = r"('[^']*'|[(\[][^()\[\]=]*[)\]]|-?\w+(?:\.\w+)*)"  # a text, a tuple or list of numbers, a number or a word


def in_options(text: str, options: Mapping[str, argparse.Action]) -> str:
    """Return a message in which options stand for the parameters that they set: "--rate" for "dropout_rate". `options` are
    those of the command, by their attributes. A word that may be plain English, such as "epochs", is a parameter only before
    "=", or as the subject at the beginning.
    """
    known = {**options, **{name: options[other] for name, other in OTHERWISE.items() if other in options}}
    names = "|".join(sorted(known, key=len, reverse=True))
    joined = "|".join(name for name in known if "_" in name) or "(?!)"
    for pattern, instead in CALLS:
        text = re.sub(pattern, instead, text)
    text = re.sub(r"\bonly (\w+(?:, \w+)*) may\b", lambda found: _list(found[1], known), text)
    text = re.sub(rf"(?<![\w/.'\"-])({names})={VALUE}", lambda found: _given(known[found[1]], found[2]), text)
    text = re.sub(rf"(?<![\w/.'\"-])({joined})(?![\w/.'\"=-])", lambda found: _typed(known[found[1]]), text)
    return re.sub(rf"(^|: )({names})(?= (must|has|was) )", lambda found: f"{found[1]}{_typed(known[found[2]])}", text)


def _typed(option: argparse.Action) -> str:
    return option.option_strings[0]


def _given(option: argparse.Action, value: str) -> str:
    """Return an option and its value, as they are typed."""
    if value == "None" or (value == "False" and len(option.option_strings) == 1):
        return f"no {_typed(option)}"
    if option.nargs == 0:
        return option.option_strings[-1] if value == "False" else _typed(option)
    if value[0] in "([":
        value = ",".join(part.strip() for part in value[1:-1].split(",") if part.strip())
    return f"{_typed(option)} {value.strip(chr(39))}"


def _list(names: str, known: Mapping[str, argparse.Action]) -> str:
    """Return a list of parameters as that of their options; parameters that the command has not are left out."""
    return f"only {', '.join(_typed(known[name]) for name in names.split(', ') if name in known)} may"
