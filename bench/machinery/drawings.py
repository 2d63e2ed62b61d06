"""SVG drawings of the README: the speed-ups of training steps and their times by width, from the files of results, and a step
under row patterns.

SVG is text, so git shows which numbers changed. The colours differ in lightness, and so in greyscale as well.
"""

from __future__ import annotations

import math
import re
import statistics
from collections.abc import Iterable, Sequence
from typing import Any

from .results import by_library, mixed_processors

SHADES = {"bernoulli": "#c9d2dc", "tdp": "#e08e3c", "batchwise": "#4f8a5b", "window": "#7b3f8c", "rdp": "#1d4e79"}
INK = {"bernoulli": "black", "tdp": "black", "batchwise": "white", "window": "white", "rdp": "white"}
PALE, DARK, GREY = "#e8edf2", "#1d4e79", "#4b5563"
WIDE = re.compile(r"784-(\d+)-\1-10 p=(0\.\d+)")


def _text(
    x: float, y: float, words: str, anchor: str = "middle", size: int = 13, fill: str = GREY, weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" fill="{fill}" font-weight="{weight}">'
        f"{words}</text>"
    )


def _box(x: float, y: float, width: float, height: float, fill: str, more: str = "") -> str:
    return f'<rect x="{x:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" fill="{fill}"{more}/>'


def _line(x0: float, y0: float, x1: float, y1: float, colour: str = GREY, more: str = "") -> str:
    return f'<path d="M{x0:.1f} {y0:.1f}L{x1:.1f} {y1:.1f}" stroke="{colour}" fill="none"{more}/>'


def _svg(width: int, height: int, title: str, parts: Iterable[str]) -> str:
    return (
        "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" '
                f'font-family="Helvetica, Arial, sans-serif" role="img"><title>{title}</title>',
                _box(0, 0, width, height, "white"),
                *parts,
                "</svg>",
            ]
        )
        + "\n"
    )


# --- from the files of results ----------------------------------------------------------------------------------------
def charts(records: Sequence[dict[str, Any]]) -> dict[str, str]:
    """{file name: SVG}, of results with NumPy's library; empty if there are none."""
    drawn = {"accuracy.svg": (_by_case, _dots), "speed.svg": (_steps, _speed), "width.svg": (_by_width, _lines)}
    found = {}
    for name, (select, draw) in drawn.items():
        if pairs := [(record, rows) for record in by_library(records) if (rows := select(record))]:
            found[name] = draw(*max(pairs, key=lambda pair: (len(pair[1]), pair[0]["date"])))
    return found


def _steps(record: dict[str, Any]) -> dict[tuple[str, int, str], dict[str, Any]]:
    """{(rate, width, kind of dropout): row} of networks whose two hidden layers have the same width."""
    return {
        (match[2], int(match[1]), row["implementation"]): row
        for row in record["rows"]
        if row["suite"] == "mlp"
        and row.get("ratio") is not None
        and row["implementation"] in SHADES
        and (match := WIDE.fullmatch(row["case"]))
    }


def _speed(record: dict[str, Any], steps: dict[tuple[str, int, str], dict[str, Any]]) -> str:
    """A panel for each rate, a group of bars for each width, a bar for each ratio with a mark at its ceiling."""
    rates, widths = (sorted({key[i] for key in steps}) for i in (0, 1))
    most = max(max(row["ratio"], row.get("ceiling") or 0) for row in steps.values())
    panel, floor, unit = 820 / len(rates), 300, 200 / most
    group = (panel - 30) / len(widths)
    parts = [
        _text(40, 28, "How many times shorter a training step is than PyTorch's with nn.Dropout", "start", 16, DARK, "bold"),
        _text(
            40,
            48,
            f"784-H-H-10, batch 128; {record['machine']['cpu']}, {record['machine']['threads']} threads; commit "
            f"{(record.get('commit') or 'unknown')[:12]}, {record['date'][:10]}",
            "start",
            12,
        ),
    ]
    shades = {kind: shade for kind, shade in SHADES.items() if any(key[2] == kind for key in steps)}
    bar = (group - 16) / len(shades)
    for i, (kind, shade) in enumerate(shades.items()):
        parts += [_box(40 + 100 * i, 60, 12, 12, shade), _text(57 + 100 * i, 71, kind, "start")]
    x = 40 + 100 * len(shades)
    parts += [_line(x, 66, x + 18, 66, "black", ' stroke-width="2"'), _text(x + 24, 71, "what the FLOPs allow", "start")]
    for i, rate in enumerate(rates):
        left = 40 + i * panel
        parts.append(_text(left + (panel - 30) / 2, floor + 42, f"rate p = {rate}", weight="bold"))
        for j, width in enumerate(widths):
            start = left + j * group
            parts.append(_text(start + (group - 16) / 2, floor + 20, f"H = {width}"))
            for k, (kind, shade) in enumerate(shades.items()):
                if (row := steps.get((rate, width, kind))) is None:
                    continue
                x, top = start + k * bar, floor - unit * row["ratio"]
                parts += [
                    _box(x, top, bar - 2, floor - top, shade),
                    _text(x + bar / 2 - 1, floor - 6, f"{row['ratio']:.1f}", size=8, fill=INK[kind]),
                ]
                if row.get("ceiling"):
                    y = floor - unit * row["ceiling"]
                    parts.append(_line(x - 1, y, x + bar - 1, y, "black", ' stroke-width="2"'))
        parts.append(_line(left - 4, floor - unit, left + panel - 34, floor - unit, GREY, ' stroke-dasharray="4 3"'))
        parts.append(_line(left - 4, floor, left + panel - 34, floor))
    parts.append(_text(34, floor - unit + 4, "1", "end", 12))
    return _svg(880, 360, "How many times shorter a training step is than PyTorch's", parts)


DOTS = {"none": "#1d4e79", "bernoulli": "#9aa5b1", "rdp": "#e08e3c", "window": "#4f8a5b"}


def _by_case(record: dict[str, Any]) -> dict[str, dict[str, dict[str, Any]]]:
    """{case: {kind of dropout: row}} of the cases whose times were compared with training without dropout."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for row in record["rows"]:
        if row["suite"] == "time-to-accuracy" and row.get("timed") and _plain(row["implementation"]) in DOTS:
            found.setdefault(row["case"], {})[row["implementation"]] = row
    return {case: rows for case, rows in found.items() if "none" in rows and len(rows) > 1}


def _plain(kind: str) -> str:
    return kind.removesuffix(" early")


def _dots(record: dict[str, Any], cases: dict[str, dict[str, dict[str, Any]]]) -> str:
    """A line of dots for each case: the time to the target by kind of dropout, and the accuracy after the last epoch."""
    left, unit, top, gap = 270, 170, 118, 58
    most = max((row["to_target"] for rows in cases.values() for row in rows.values() if row["to_target"]), default=1.0)
    end = max(1, math.ceil(2 * most) / 2)
    unit *= 2 / end
    floor = top + gap * len(cases)
    hardware = f"{record['machine']['cpu']}, {record['machine']['threads']} threads"
    if ran_on := mixed_processors(record):
        hardware = ran_on[0] if len(ran_on) == 1 else f"{len(ran_on)} processors, each case on one"
    parts = [
        _text(
            40, 28, "Time to the accuracy that training without dropout ends with, minus 0.2 points", "start", 16, DARK, "bold"
        ),
        _text(40, 48, f"as a share of the time of all its epochs; p = 0.5; {hardware}; {record['date'][:10]}", "start", 12),
    ]
    for i, (kind, shade) in enumerate(DOTS.items()):
        parts += [f'<circle cx="{46 + 100 * i}" cy="72" r="5" fill="{shade}"/>', _text(57 + 100 * i, 77, kind, "start")]
    x = 46 + 100 * len(DOTS)
    parts += [
        f'<circle cx="{x}" cy="72" r="5" fill="white" stroke="{GREY}" stroke-width="2"/>',
        _text(x + 11, 77, "in the first three quarters of the epochs", "start"),
        _text(x + 276, 77, "× not there", "start"),
        _text(left + unit * end + 20, top - 10, "accuracy in the end (the better)", "start", 12, weight="bold"),
    ]
    for half in range(int(2 * end) + 1):
        across = left + unit * half / 2
        parts += [_line(across, top - 8, across, floor - 8, PALE), _text(across, floor + 10, f"{half / 2:g}", size=12)]
    for i, (case, rows) in enumerate(cases.items()):
        y = top + gap * i + 14
        data, network = _named(case)
        parts.append(_text(left - 16, y, data, "end", weight="bold"))
        parts.append(_text(left - 16, y + 16, network, "end", 11))
        for lane, (kind, shade) in enumerate(DOTS.items()):
            both = [rows[name] for name in (kind, f"{kind} early") if name in rows]
            if both:
                parts += _lane(both, shade, left, unit, y - 12 + 11 * lane, left + unit * end)
                best = max(row["accuracy"] for row in both)
                parts.append(
                    _text(left + unit * end + 20 + 58 * lane, y + 8, f"{100 * best:.1f} %", "start", 12, shade, "bold")
                )
    return _svg(880, floor + 28, "Time to the accuracy that training without dropout ends with", parts)


def _named(case: str) -> tuple[str, str]:
    """(data set, network and epochs) of a case; the data set of an MLP without a name is MNIST."""
    *data, network, epochs = case.split(", ")
    return ", ".join(data) or "mnist", f"{network}, {epochs}"


def _lane(rows: Sequence[dict[str, Any]], shade: str, left: float, unit: float, y: float, end: float) -> list[str]:
    """A dot for each row whose training reached the target, hollow for dropout in the first epochs only. At the end, a cross if
    one did not, and two if both did not.
    """
    missing = sum(row["to_target"] is None for row in rows)
    parts = [_text(end + 4, y + 4, "×" * missing, "start", 12, shade, "bold")] if missing else []
    for row in rows:
        fill = (
            f'fill="white" stroke="{shade}" stroke-width="2"' if row["implementation"].endswith(" early") else f'fill="{shade}"'
        )
        if row["to_target"] is not None:
            parts.append(f'<circle cx="{left + unit * row["to_target"]:.1f}" cy="{y:.1f}" r="5" {fill}/>')
    return parts


WIDTH = re.compile(r"64-(\d+)-\1-2, batch \d+, adam, (\d+) steps, against .*")
COLOURS = {"none": DARK, "scikit-learn": "#e08e3c", "torch": "#4f8a5b", "jax": "#8a6fae"}
MARKS = {"none": 5, "scikit-learn": 3, "torch": 3, "jax": 3}  # radius


def _by_width(record: dict[str, Any]) -> dict[tuple[str, int], float]:
    """{(implementation, width): microseconds per step of a whole fit}.

    Ours was measured beside each peer and is the median. A peer's time is ours times their ratio, which is that of turns that
    follow each other.
    """
    ours: dict[int, list[float]] = {}
    ratios: dict[tuple[str, int], float] = {}
    for row in record["rows"]:
        compared = row["suite"] == "small" and row["implementation"] == "none" and row["ratio"] is not None
        if compared and (match := WIDTH.fullmatch(row["case"])):
            ours.setdefault(int(match[1]), []).append(1e3 * row["median_ms"] / int(match[2]))
            ratios[row["peer"], int(match[1])] = row["ratio"]
    if len(ours) < 2:
        return {}  # no line
    found = {("none", width): statistics.median(times) for width, times in ours.items()}
    return found | {(name, width): ratio * found["none", width] for (name, width), ratio in ratios.items()}


def _lines(record: dict[str, Any], steps: dict[tuple[str, int], float]) -> str:
    """A line for each implementation, both axes logarithmic."""
    widths = sorted({width for _, width in steps})
    low = math.floor(math.log10(min(steps.values())))
    high = max(math.ceil(math.log10(max(steps.values()))), low + 1)

    def x(width: int) -> float:
        return 90 + 560 * math.log(width / widths[0]) / math.log(widths[-1] / widths[0])

    def y(microseconds: float) -> float:
        return 320 - 240 * (math.log10(microseconds) - low) / (high - low)

    parts = [
        _text(40, 28, "Time of a training step by width, without dropout", "start", 16, DARK, "bold"),
        _text(
            40,
            48,
            f"64-H-H-2, batch 128, Adam, whole fits divided by their steps; {record['machine']['cpu']}, "
            f"{record['machine']['threads']} threads; commit {(record.get('commit') or 'unknown')[:12]}, {record['date'][:10]}",
            "start",
            12,
        ),
    ]
    for power in range(low, high + 1):
        label = f"{10**power} µs" if power < 3 else f"{10 ** (power - 3)} ms"
        parts += [_line(90, y(10**power), 650, y(10**power), PALE), _text(82, y(10**power) + 4, label, "end", 12)]
    parts += [_text(x(width), 342, f"H = {width}") for width in widths]
    lines = {name: [(x(width), y(steps[name, width])) for width in widths if (name, width) in steps] for name in COLOURS}
    highest = sorted((points[-1][1], name) for name, points in lines.items() if points)
    for place, (_, name) in enumerate(highest):
        points = lines[name]
        path = "L".join(f"{across:.1f} {down:.1f}" for across, down in points)
        parts.append(f'<path d="M{path}" stroke="{COLOURS[name]}" stroke-width="{2 + (name == "none")}" fill="none"/>')
        parts += [
            f'<circle cx="{across:.1f}" cy="{down:.1f}" r="{MARKS[name]}" fill="{COLOURS[name]}"/>' for across, down in points
        ]
        parts.append(_text(668, 84 + 22 * place, "numbanet" if name == "none" else name, "start", fill=COLOURS[name]))
    return _svg(880, 360, "Time of a training step by width", parts)


# --- a step -----------------------------------------------------------------------------------------------------------
CELL = 14


def _grid(x: float, middle: float, mask: Any) -> list[str]:
    """A matrix of booleans, True dark; x is its left edge, `middle` the height of its centre."""
    top = middle - CELL * len(mask) / 2
    return [
        _box(x + CELL * j, top + CELL * i, CELL - 2, CELL - 2, DARK if cell else PALE)
        for i, row in enumerate(mask)
        for j, cell in enumerate(row)
    ]


def step() -> str:
    """A training step of the network 8-9-8-3 under row patterns: the activations and the weights that it reads."""
    import numpy as np

    from numbanet import RowPlan

    plans, samples, middle, x = (RowPlan(9, 3, 1), RowPlan(8, 2, 0)), 4, 150, 24
    sides = [np.ones(8, bool), *(plan.mask() for plan in plans), np.ones(3, bool)]
    parts = [
        _text(
            24,
            28,
            "One step of 8-9-8-3 with rdp: dark cells are read, pale ones neither read nor written",
            "start",
            16,
            DARK,
            "bold",
        ),
        _text(
            24,
            50,
            f"layer 1 drew dp = {plans[0].dp}, bias {plans[0].bias}; layer 2 drew dp = {plans[1].dp}, bias {plans[1].bias}",
            "start",
        ),
    ]
    for i, (side, following) in enumerate(zip(sides, [*sides[1:], None], strict=True)):
        count = int(side.sum())
        name = ("x", "y1", "y2", "answer")[i]
        what = "whole" if count == len(side) else f"{count} of {len(side)} kept"
        parts += _grid(x, middle, np.ones((samples, count), bool))
        centre = x + CELL * count / 2
        parts += [_text(centre, 250, name, weight="bold"), _text(centre, 268, what, size=11)]
        x += CELL * count
        if following is None:
            break
        x = max(x, centre + 36)
        parts += [_text(x + 14, middle + 5, "→", size=20), *_grid(x + 28, middle, np.outer(following, side))]
        centre = x + 28 + CELL * len(side) / 2
        parts += [
            _text(centre, 250, f"W{i + 1}", weight="bold"),
            _text(centre, 268, f"{np.outer(following, side).mean():.0%} read", size=11),
        ]
        x += 28 + CELL * len(side)
        parts.append(_text(x + 14, middle + 5, "→", size=20))
        x += 36
    notes = (
        "Activations stay compact from layer to layer: the zeros are never written. The backward pass computes dW for the",
        "dark cells of W alone, and only these are updated. The next step draws other patterns.",
    )
    parts += [_text(24, 304 + 18 * i, line, "start") for i, line in enumerate(notes)]
    return _svg(880, 336, "One training step under row patterns", parts)


if __name__ == "__main__":
    from .machine import ROOT

    (ROOT / "bench" / "step.svg").write_text(step(), encoding="utf-8")
