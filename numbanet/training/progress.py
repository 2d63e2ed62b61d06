"""`Progress` shows the progress of a fit."""

from __future__ import annotations

from .hooks import Hook

BAR = 3  # columns of the bar
WIDE = 100  # columns from which there is room for the word epoch
BESIDE = BAR + 8  # columns of the bar, the remaining time and the spaces between


class Progress(Hook):
    """Shows a progress bar over the samples on a terminal. Elsewhere, for example in a file or a notebook, it prints one line
    per epoch.

    The bar and the lines show the kind of dropout; the loss, the score and the validation score, or for a language model the
    perplexity and the validation perplexity; the share of FLOPs that were skipped, if any; and the samples or tokens per
    second. If the terminal is too narrow, the bar leaves out the word epoch and the last figures.

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
    batched = True

    def __init__(self, samples: int, epochs: range, dropout: str) -> None:
        import rich
        from rich import progress

        self.samples, self.last, self.dropout, self.bar = samples, epochs.stop, dropout, None
        self.first: int | None = epochs.start
        self.recorded = False  # True after the first epoch
        console = rich.get_console()
        if console.is_interactive:
            self.bar = progress.Progress(
                progress.TextColumn("{task.description}"),
                progress.BarColumn(bar_width=BAR),
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
        if self.bar and not self.recorded:  # the remaining time is estimated anew: steps of the first epoch compile
            self.bar.reset(self.task, completed=int(self.bar.tasks[0].completed))
        self.recorded = True
        if self.bar:
            width = self.bar.console.width
            name = f"{self.dropout}{', epoch' if width >= WIDE else ''} {record['epoch']}/{self.last}"
            left = self.bar.tasks[0].time_remaining or 0
            hours = 0 if left < 3600 else 2 if left < 36000 else 3
            room = width - len(name) - BESIDE - hours
            shown = next((text for n in range(len(figures), 0, -1) if len(text := " ".join(figures[:n])) <= room), "")
            self.bar.update(self.task, description=name, figures=shown)
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
