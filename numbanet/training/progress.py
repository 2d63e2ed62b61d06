"""`Progress` shows the progress of a fit."""

from __future__ import annotations

from .hooks import Hook

BESIDE = 14  # columns that the remaining time and spaces take, besides the bar


class Progress(Hook):
    """Shows a progress bar over the samples on a terminal. Elsewhere, for example in a file or a notebook, it prints one line
    per epoch.

    The bar and the lines show the kind of dropout; the loss, the score and the validation score, or for a language model the
    perplexity and the validation perplexity; the share of FLOPs that were skipped, if any; and the samples or tokens per
    second. If the terminal is too narrow, the bar leaves out the last figures.

    Parameters
    ----------
    samples : int
        Samples per epoch.
    epochs : range
        The epochs to train, counted from 0.
    dropout : str
        The kind of dropout.
    """

    watches = changes = False

    def __init__(self, samples: int, epochs: range, dropout: str) -> None:
        import rich
        from rich import progress

        self.samples, self.last, self.dropout, self.bar = samples, epochs.stop, dropout, None
        self.first: int | None = epochs.start
        console = rich.get_console()
        if console.is_interactive:
            self.bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(bar_width=4),
                progress.TimeRemainingColumn(compact=True),
                progress.TextColumn("{task.fields[figures]}"),
                console=console,
            )
            self.task = self.bar.add_task(dropout, total=samples * len(epochs), figures="")

    def fit_start(self, run):
        if self.bar:
            self.bar.start()

    def fit_end(self, run):
        if self.bar:
            self.bar.stop()

    def epoch_start(self, run, epoch):
        self.tick(self.samples * (epoch - self.first) if self.first is not None else 0)  # the epochs before a resume
        self.done, self.first = 0, None

    def after_update(self, run):
        self.tick(run.seen - self.done)
        self.done = run.seen

    def epoch_recorded(self, run, record):
        self.show(record)

    def tick(self, samples: int) -> None:
        """Advance the bar by `samples` samples."""
        if self.bar:
            self.bar.advance(self.task, samples)

    def show(self, record: dict) -> None:
        """Show the figures of an epoch."""
        figures = _figures(record, self.samples)
        if self.bar:
            number = f"{self.dropout} {record['epoch']}"
            room = self.bar.console.width - len(number) - BESIDE
            shown = next((text for n in range(len(figures), 0, -1) if len(text := " ".join(figures[:n])) <= room), "")
            self.bar.update(self.task, description=number, figures=shown)
        else:
            number = f"epoch {record['epoch']:{len(str(self.last))}}/{self.last}"
            print(number, self.dropout, *figures, sep="  ", flush=True)


def _figures(record: dict, samples: int) -> list[str]:
    """Return the figures of an epoch as text, the most important first."""
    shown = (
        {"perplexity": "perplexity .1f", "validation_perplexity": "validation .1f"}
        if "perplexity" in record
        else {"loss": "loss .3f", "score": "score .4f", "validation_score": "validation .4f"}
    )
    what = "tokens" if "perplexity" in record else "samples"
    figures = [
        f"{name} {record[key]:{form}}"
        for key, (name, form) in ((key, text.split()) for key, text in shown.items())
        if key in record
    ]
    if record["flops_share"] < 1:
        figures.append(f"{1 - record['flops_share']:.0%} FLOPs skipped")
    return [*figures, f"{samples / max(record['seconds'], 1e-9):,.0f} {what}/s"]
