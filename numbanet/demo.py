"""The demo: trains on handwritten digits with four kinds of dropout, and compares them."""

from __future__ import annotations

import os
from pathlib import Path

LAYERS, RATE, EPOCHS = (1024, 1024), 0.5, 30


def run(
    path: str | os.PathLike = "demo.png", device: str = "auto", layers: tuple[int, ...] = LAYERS, epochs: int = EPOCHS
) -> int:
    """Train without dropout and with the policies bernoulli, rdp and tdp. Print a table of scores and costs, and plot the
    learning curves if matplotlib is installed.

    Return the exit status: 0, or 130 if training was interrupted. After an interrupt, the table has the finished runs, and
    nothing is plotted.
    """
    from rich.console import Console
    from rich.table import Table

    from . import Net, plots
    from .datasets import load_digits
    from .device import device as named
    from .dropout import POLICIES

    console = Console()
    named(device)  # raises for an unavailable device before anything is printed
    target: Path | None = None
    try:
        target = plots.check_target(path)
    except RuntimeError as error:
        console.print(f"no plot: {error}", markup=False)
    X, y, X_test, y_test = load_digits()
    console.print(
        f"{len(y)} handwritten digits of 8 x 8 pixels, {len(y_test)} for the test; a network "
        f"{'-'.join(map(str, (X.shape[1], *layers, 10)))}, {epochs} epochs, dropout rate {RATE}"
    )
    table = Table("dropout", "test accuracy", "s / epoch", "FLOPs done", "what is dropped")
    histories, interrupted = {}, False
    for name, policy in POLICIES.items():
        if policy.kind == "patches":  # for convolutions
            continue
        net = Net(layers, dropout=name, dropout_rate=RATE, epochs=epochs, device=device, random_state=0, verbose=1)
        try:
            histories[name] = net.fit(X, y, validation=(X_test, y_test)).history_
        except KeyboardInterrupt:
            interrupted = True
            break
        warm = sorted(record["seconds"] for record in net.history_)[len(net.history_) // 2]
        share = sum(record["flops_share"] for record in net.history_) / len(net.history_)
        table.add_row(
            name,
            f"{net.score(X_test, y_test):.2%}",
            f"{warm:.4f}",
            f"{share:.0%}",
            ((policy.__doc__ or "").splitlines()[0].rpartition(": ")[2]).rstrip("."),
        )
    console.print(table)
    if target is not None and not interrupted:
        console.print(f"learning curves: {plots.learning_curves(histories, target, _promise(histories))}", markup=False)
    return 130 if interrupted else 0


def _promise(histories: dict[str, list[dict]]) -> str:
    """Return the title of the plot, which states the median time of an epoch relative to conventional dropout (bernoulli)."""
    warm = {name: sorted(record["seconds"] for record in history)[len(history) // 2] for name, history in histories.items()}
    said = ", ".join(f"{name} {seconds / warm['bernoulli']:.2f}" for name, seconds in warm.items() if name != "bernoulli")
    return f"Digits, dropout rate {RATE}. Time of an epoch relative to bernoulli, which computes what it drops: {said}"
