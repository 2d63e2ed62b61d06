"""What a fit says with verbose=1: a line an epoch in a file, a bar on a terminal."""

import io
import re

import pytest
import rich
from rich.console import Console

from numbanet import LanguageModel, Net, NetRegressor, RowDropout, demo
from numbanet.datasets import load_digits
from numbanet.training.progress import Progress

X, Y, X_TEST, Y_TEST = load_digits()
SMALL = {"layers": (32, 32), "epochs": 3, "random_state": 0, "verbose": 1, "device": "cpu"}
WORDS = "the cat sat on the mat and the dog sat on the rug".split() * 40
NUMBER, SPEED = r"-?\d+\.\d+", r"[\d,]+ (samples|tokens)/s"


def language(**options):
    return LanguageModel((16,), epochs=3, batch_size=4, steps=8, random_state=0, verbose=1, **options)


FITS = {  # what is fitted: what each line says after its epoch
    "none": (lambda: Net(**SMALL).fit(X, Y), f"none  loss {NUMBER}  score {NUMBER}  {SPEED}"),
    "validation": (
        lambda: Net(**SMALL).fit(X, Y, validation=(X_TEST, Y_TEST)),
        f"none  loss {NUMBER}  score {NUMBER}  validation {NUMBER}  {SPEED}",
    ),
    "rdp": (lambda: Net(**SMALL, dropout="rdp").fit(X, Y), rf"rdp  loss {NUMBER}  score {NUMBER}  \d+% FLOPs skipped  {SPEED}"),
    "for one fit": (lambda: Net(**SMALL).fit(X, Y, dropout="bernoulli"), f"bernoulli  loss {NUMBER}  score {NUMBER}  {SPEED}"),
    "regressor": (
        lambda: NetRegressor(**SMALL, dropout=RowDropout(0.5), early_stopping=True).fit(X, Y),
        rf"rdp  loss {NUMBER}  score {NUMBER}  validation {NUMBER}  \d+% FLOPs skipped  {SPEED}",
    ),
    "language": (lambda: language().fit(WORDS), f"none  perplexity {NUMBER}  {SPEED}"),
    "text": (
        lambda: language(dropout="rdp", recurrent_dropout="rdp").fit(WORDS, validation=WORDS[:99]),
        rf"rdp\+rdp  perplexity {NUMBER}  validation {NUMBER}  \d+% FLOPs skipped  {SPEED}",
    ),
}


@pytest.mark.parametrize("name", FITS)
def test_a_file_has_one_line_an_epoch(capsys, name):
    fit, said = FITS[name]
    fit()
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    for number, line in enumerate(lines, 1):
        assert re.fullmatch(f"epoch {number}/3  {said}", line)


def test_the_lines_are_those_of_the_records(capsys):
    net = Net(**{**SMALL, "epochs": 10}, dropout="rdp").fit(X, Y, validation=(X_TEST, Y_TEST))
    for record, line in zip(net.history_, capsys.readouterr().out.splitlines(), strict=True):
        assert line.startswith(
            f"epoch {record['epoch']:2}/10  rdp  loss {record['loss']:.3f}  score {record['score']:.4f}  "
            f"validation {record['validation_score']:.4f}  {1 - record['flops_share']:.0%} FLOPs skipped  "
        )
    net.partial_fit(X, Y)
    assert capsys.readouterr().out.startswith("epoch 11/11  rdp  ")


def test_silence_by_default(capsys):
    Net(**{**SMALL, "verbose": 0}).fit(X, Y)
    assert tuple(capsys.readouterr()) == ("", "")


@pytest.fixture
def terminal(monkeypatch):
    """A terminal of 80 columns, whose last screen is asked for."""
    console = Console(
        force_terminal=True,
        force_interactive=True,
        width=80,
        file=io.StringIO(),
        legacy_windows=False,
        color_system=None,
        _environ={},
    )
    monkeypatch.setattr(rich, "get_console", lambda: console)
    return lambda: re.sub(r"\x1b\[[^a-zA-Z]*[a-zA-Z]", "", console.file.getvalue()).strip().split("\r")[-1].strip()


def test_a_terminal_has_a_bar(terminal, capsys):
    net = Net(**SMALL, dropout="rdp").fit(X, Y, validation=(X_TEST, Y_TEST))
    last, shown = net.history_[-1], terminal()
    assert capsys.readouterr().out == "" and "━" in shown and len(shown) <= 80 and shown.startswith("rdp 3/3 ")
    assert (
        f"loss {last['loss']:.3f} score {last['score']:.4f} validation {last['validation_score']:.4f} "
        f"{1 - last['flops_share']:.0%} FLOPs skipped"
    ) in shown


@pytest.mark.parametrize("validation, fits", [(False, "12,345 samples/s"), (True, "55% FLOPs skipped")])
def test_what_matters_fits_into_80_columns(terminal, validation, fits):
    record = {"epoch": 20, "loss": 12.345, "score": 0.98765, "flops_share": 0.45, "seconds": 1.0}
    bar = Progress(12345, range(20), "rdp")
    bar.fit_start(None)
    bar.tick(12345 * 19)
    bar.show(record | ({"validation_score": 0.91} if validation else {}))
    bar.fit_end(None)
    assert fits in terminal()


@pytest.mark.filterwarnings("ignore:(tdp|dsg). a")  # layers are narrow
def test_the_demo_names_each_kind(capsys, tmp_path):
    demo.run(tmp_path / "demo.png", "cpu", (16, 16), epochs=2)
    out = capsys.readouterr().out
    for kind in ("none", "bernoulli", "rdp", "tdp", "dsg"):
        found = re.findall(rf"^epoch (\d)/2  {kind}  loss {NUMBER}  score {NUMBER}  validation {NUMBER}  ", out, re.M)
        assert found == ["1", "2"]
