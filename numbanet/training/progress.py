"""Progress: a bar over the samples of a fit."""
from __future__ import annotations

from typing import Any


class Progress:
    """A rich progress bar over the samples of a fit, with loss and score, or perplexity, samples/s and the share of FLOPs
    skipped."""

    def __init__(self, total: int) -> None:
        from rich import progress
        self.bar = progress.Progress(progress.TextColumn("{task.description}"), progress.BarColumn(bar_width=6),
                                     progress.TimeRemainingColumn(compact=True),
                                     progress.TextColumn("{task.fields[figures]}"))  # 80 columns in all
        self.task = self.bar.add_task("fit", total=total, figures="")

    def __enter__(self) -> Progress:
        self.bar.start()
        return self

    def __exit__(self, *error: Any) -> None:
        self.bar.stop()

    def tick(self, samples: int) -> None:
        self.bar.advance(self.task, samples)

    def show(self, record: dict, samples: int) -> None:
        if "perplexity" in record:
            learned, what = f"perplexity {record.get('validation_perplexity', record['perplexity']):.1f}", "tokens"
        else:
            score = record.get("validation_score", record["score"])
            learned, what = f"loss {record['loss']:.3f} score {score:.4f}", "samples"
        self.bar.update(self.task, description=f"epoch {record['epoch']}", figures=(
            f"{learned} {samples / max(record['seconds'], 1e-9):,.0f} {what}/s {1 - record['flops_share']:.0%} FLOPs skipped"))
