"""A report that a person can keep: what a training was, and what it reached, as one HTML page."""

from __future__ import annotations

import datetime
import html
import math
import os
import time
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from scipy.sparse import issparse
from sklearn.base import clone
from sklearn.utils import _safe_indexing
from sklearn.utils.validation import _num_samples

from numbanet_kernels.runtime.interrupt import deferred

from ..arguments import PAGES, check_target
from ..html_page import document
from ..layers import ActivationSpec
from ..layers.summary import lines, shape_text, short
from ..layers.tree import Tree
from ..losses import SquaredError
from ..plans import Plans
from . import drawings
from .card import check_fitted, facts, kept_epoch, shape_of, some, title

DRAWS = 20  # plans that are drawn for the mean share of a layer's FLOPs
MOST_CLASSES = 20  # with more, the confusion matrix is a picture
STEPS, BATCH, EPOCHS = 8, 128, 100  # of a copy: steps of an epoch, samples of a step by default, most epochs
PATIENCE = 2.0  # seconds after which a copy stops
CONFUSED = 10  # pairs of classes that are listed beside it

STYLE = """
.figures { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 9.5rem), 1fr)); gap: 0.6rem; }
.figures div { background: var(--card); border-radius: 0.5rem; padding: 0.6rem 0.8rem; }
.figures b { display: block; font-size: 1.3rem; }
.curves { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 19rem), 1fr)); gap: 1rem; }
svg { width: 100%; max-width: 40rem; height: auto; display: block; }
table { border-collapse: collapse; font-size: 0.9rem; font-variant-numeric: tabular-nums; }
th, td { padding: 0.25rem 0.6rem; border-bottom: 1px solid var(--line); text-align: right; white-space: nowrap; }
th { font-weight: 600; }
th[scope="row"], td.text, th.text { text-align: left; }
@media (max-width: 30rem) { th, td { padding: 0.2rem 0.35rem; } }
td.long { white-space: normal; text-align: left; overflow-wrap: anywhere; }
"""


def report(net: Any, path: str | os.PathLike, X: Any = None, y: Any = None, data: str | None = None) -> None:
    """Write a report of a fitted estimator as one HTML page, atomically. It needs no network and no script.

    The page has the curves of `history_` by epoch and by seconds, what was dropped of each layer, FLOPs and seconds, the
    parameters that are not at their defaults, and versions. The share of a layer's FLOPs is a mean over plans that are drawn
    anew for the last epoch's rates.

    If samples are given, it has their score, that of the best constant prediction (the most frequent class, or for a regressor
    the constant of its loss, such as the mean), and the confusion matrix of a classifier, or the predictions of a regressor
    over the targets. The seconds of a training step with and without dropout are then measured on copies of the network, which
    train on some of the samples for a few seconds; what dropout saved is estimated from their ratio.

    Parameters
    ----------
    net : estimator
        A fitted `Net`, `NetRegressor` or `LanguageModel`.
    path : str or path
        The file; it is replaced.
    X, y : array_like, optional
        Samples that were not used in training, and their targets. For a `LanguageModel` X is a text, and there is no y.
    data : str, optional
        What the network was trained on, for the head of the page, such as "prices.csv, column price".

    Raises
    ------
    TypeError
        If only one of X and y is given.
    ValueError
        If the samples do not fit, `history_` is empty, or the file name does not end in .html or .htm.
    FileNotFoundError, IsADirectoryError, PermissionError
        If the file cannot be written.
    sklearn.exceptions.NotFittedError
        If the estimator is not fitted.
    ImportError
        If matplotlib is missing.
    """
    check_fitted("report", net)
    if not net.history_:
        raise ValueError("report: the estimator has no history of a training")
    text = hasattr(net, "vocabulary_")
    if (X is None) != (y is None) and not (text and y is None):
        raise TypeError("report: samples and their targets belong together: give X and y")
    target = check_target(path, PAGES)
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ImportError(f"a report needs matplotlib: pip install 'numbanet[plots]' ({error})") from error
    from numbanet.datasets.files import write_file

    page = _page(net, X, y, text, data)
    with deferred:
        write_file(target, page.encode())


def _page(net: Any, X: Any, y: Any, text: bool, data: str | None) -> str:
    told, name = facts(net), title(net)
    # samples are judged first, so that bad ones are refused before anything is drawn
    tested = [] if X is None else _text_tested(net, X) if text else _tested(net, X, y)
    training = "training, with dropout" if net.policy_.name != "none" else "training"
    curves = drawings.curves(net.history_, "perplexity" if text else "score", _score_name(net), training)
    now = datetime.datetime.now(datetime.timezone.utc)
    parts = [
        f"<h1>{_safe(name)}</h1>",
        f'<p class="faint">{_safe(_data(net, told, data))} Written {now:%Y-%m-%d %H:%M} UTC.</p>',
        _figures(net),
        *tested,
        "<h2>Learning</h2>",
        '<div class="curves">',
        *(f'<figure style="margin: 0">{svg}</figure>' for svg in curves),
        "</div>",
        "<details><summary>All figures by epoch</summary>",
        _history(net.history_),
        "</details>",
        "<h2>What was dropped</h2>",
        *_dropped(net),
        "<h2>Parameters</h2>",
        "<p>Those that are not at their defaults.</p>" if told["parameters"] else "<p>All are at their defaults.</p>",
        _table(["parameter", "value"], [[key, value] for key, value in told["parameters"].items()], texts=2),
        "<h2>Versions</h2>",
        f"<p>{_safe(', '.join(f'{key} {version}' for key, version in told['versions'].items()))}</p>",
    ]
    return document(name, "\n".join(parts), STYLE)


# --- parts ------------------------------------------------------------------------------------------------------------
def _data(net: Any, told: dict[str, Any], data: str | None) -> str:
    source = "" if data is None else f"Data: {data}. "
    classes = f"{len(told['classes'])} classes: {some(told['classes']).rstrip('…, ')}." if "classes" in told else ""
    words = f"Vocabulary of {len(told['vocabulary']):,} words." if "vocabulary" in told else ""
    return f"{source}Shape of a sample: {shape_of(net)}. {classes}{words}"


def _score_name(net: Any, own: bool = False) -> str:
    """The name of the score of `history_`, or if `own` of that of the method `score`."""
    if hasattr(net, "vocabulary_"):
        return "perplexity"
    if net.scoring is not None and not own:
        return "score"
    return "accuracy" if hasattr(net, "classes_") else "R²" if net.loss == "squared_error" else "score"


def _figures(net: Any) -> str:
    """The figures of a training as large numbers."""
    history = net.history_
    kept, seconds = kept_epoch(net), math.fsum(record["seconds"] for record in history)
    share = math.fsum(record["flops_share"] for record in history) / len(history)
    shown = [(f"{net.n_iter_}", "epochs"), (f"{seconds:.3g} s", "of training"), (f"{1 - share:.0%}", "of the FLOPs skipped")]
    for key, name in (
        ("loss", "training loss"),
        ("score", f"training {_score_name(net)}"),
        ("perplexity", "training perplexity"),
        ("validation_score", f"validation {_score_name(net)}"),
        ("validation_perplexity", "validation perplexity"),
    ):
        if key in kept and not (key.endswith("score") and "perplexity" in kept):
            shown.append((f"{kept[key]:.4g}", name))
    if getattr(net, "best_epoch_", None) is not None:
        weights = ", whose weights and figures these are" if kept["epoch"] == net.best_epoch_ else "; these are the last one's"
        shown.append((str(net.best_epoch_), f"best epoch{weights}"))
    return f'<div class="figures">{"".join(f"<div><b>{value}</b>{name}</div>" for value, name in shown)}</div>'


def _history(history: Sequence[dict[str, Any]]) -> str:
    """The figures of all epochs as a table; above it, once, texts that are equal in all, such as why dropout was chosen."""
    keys = dict.fromkeys(key for record in history for key in record)
    alike = {
        key: text for key in keys if isinstance(text := history[0].get(key), str) and all(r.get(key) == text for r in history)
    }
    said = "".join(f"<p>{_safe(f'{key}: {text}')}</p>" for key, text in alike.items())
    heads = [key for key in keys if key not in alike]
    return said + _table(heads, [[_value(record.get(key, "")) for key in heads] for record in history], texts=0)


def _value(value: Any) -> str:
    if isinstance(value, (list, tuple, np.ndarray)):
        return " ".join(map(_value, value))
    return f"{value:.6g}" if isinstance(value, (float, np.floating)) else str(value)


def _dropped(net: Any) -> Iterable[str]:
    """What a step computed of each layer, and what that saved."""
    model, history = net.model_, net.history_
    policy = net.policy_.at(history[-1]["epoch"] - 1)
    spec, tree = ActivationSpec((1, *net._sample())), Tree(model)  # noqa: SLF001  the shape that print(model) uses
    dense = list(lines(model, spec))
    rates: dict[Any, list[str]] = {}
    for site in policy.sites(tree):
        if rate := policy.rate_of(site):
            rates.setdefault(tree.owners[site.path], []).append(f"{policy.of(site).name} {rate:.3g}")
    shares = _shares(policy, model, tree, spec, dense)
    yield _table(
        ["layer", "", "output", "dropout and rate", "parameters", "FLOPs", "FLOPs done"],
        [
            [
                row.path,
                repr(row.layer),
                shape_text(row.shape),
                ", ".join(dict.fromkeys(rates.get(row.layer, []))),
                f"{row.parameters:,}" if row.parameters else "",
                short(row.flops),
                _share(row, shares, row.layer in rates),
            ]
            for row in dense
        ],
        texts=4,
    )
    if len({record["dropout_rate"] for record in history}) > 1:
        yield f"<p>Rates differ between epochs; these are those of the last one, {history[-1]['epoch']}.</p>"
    share = math.fsum(record["flops_share"] for record in history) / len(history)
    total = math.fsum(row.flops or 0 for row in dense if not row.inner)
    yield (
        "<p>FLOPs are those of a training step for one sample of the network as it is now, without dropout: "
        f"{short(total)} in all. Over all epochs {share:.1%} of the FLOPs of dense training of the first network were done, "
        f"{1 - share:.1%} were skipped, "
        f"in {math.fsum(record['seconds'] for record in history):.4g} s.</p>"
    )


def _share(row: Any, shares: dict[str, float] | None, dropped: bool) -> str:
    """The share of the FLOPs of a layer that steps do, as text."""
    if not row.flops:
        return ""
    return "by the data" if shares is None and dropped else f"{(shares or {}).get(row.path, 1.0):.0%}"


def _shares(policy: Any, model: Any, tree: Tree, spec: ActivationSpec, dense: list[Any]) -> dict[str, float] | None:
    """Return the mean share of the FLOPs of each layer that steps compute, by path; None if plans depend on the data."""
    if policy.data_dependent:
        return None
    rng, done = np.random.default_rng(0), dict.fromkeys((row.path for row in dense), 0.0)
    for _ in range(DRAWS):
        plans = Plans("cpu", tree.sites, policy.plans(tree, rng), feeds=tree.feeds)
        for row in lines(model, spec, plans=plans):
            done[row.path] += (row.flops or 0.0) / DRAWS
    return {row.path: done[row.path] / row.flops for row in dense if row.flops}


# --- samples ----------------------------------------------------------------------------------------------------------
def _text_tested(model: Any, text: Any) -> list[str]:
    return ["<h2>On the given text</h2>", f"<p>perplexity <b>{model.perplexity(text):.4g}</b></p>"]


def _tested(net: Any, X: Any, y: Any) -> list[str]:
    """The score of samples, what was taken for what, and the seconds of a step."""
    found, targets = net.predict(X), y.toarray() if issparse(y) else np.asarray(y)
    by_loss = not hasattr(net, "classes_") and net.loss_ != SquaredError()
    score = _loss_score(net, targets, found) if by_loss else net.score(X, y)
    y = targets.reshape(-1) if targets.ndim == 2 and targets.shape[1] == 1 else targets
    parts = [
        "<h2>On the given samples</h2>",
        f"<p>{_score_name(net, own=True)} <b>{score:.4f}</b> on {_num_samples(X):,} samples{_safe(_baseline(net, y))}</p>",
    ]
    if not hasattr(net, "classes_"):
        if y.ndim == 1:
            parts.append(drawings.scatter(y.astype(np.float64), found.reshape(-1)))
    elif y.ndim == 1:
        parts += _confusion(net.classes_, y, found)
    return parts + _seconds(net, X, y)


def _loss_score(net: Any, y: np.ndarray, found: np.ndarray) -> float:
    """The score of predictions by the loss of the training, in which the best constant has 0, as in `history_`."""
    y, found = (np.asarray(values, np.float64).reshape(len(y), -1) for values in (y, found))
    scaled = ((values - net.target_mean_) / net.target_scale_ for values in (y, found))
    return net.loss_.score(*scaled, None)


def _baseline(net: Any, y: np.ndarray) -> str:
    """What the best constant prediction would reach on samples with the targets y; nothing if it is not known."""
    if not hasattr(net, "classes_"):  # the score of a loss compares with this constant
        best = net.loss_.best_constant(y.astype(np.float64), None)
        return "" if best is None else f"; always predicting {best[0]} of their targets has 0"
    if y.ndim > 1:
        return ""
    classes, counts = np.unique(y, return_counts=True)
    return f"; always predicting the most frequent class, {classes[counts.argmax()]}, has {counts.max() / len(y):.4f}"


def _seconds(net: Any, X: Any, y: Any) -> list[str]:
    """What dropout saved, by the seconds of an epoch of copies with and without it; nothing where they cannot be compared."""
    policy, history = net.policy_, net.history_
    varies = len({record["dropout_rate"] for record in history}) > 1
    if policy.name == "none" or varies or net.sparsity is not None or net.parallel is not None or net.objective is not None:
        return []
    count = min(_num_samples(X), STEPS * (net.batch_size or BATCH))
    X = X.tocsr() if issparse(X) else X
    rows = np.linspace(0, _num_samples(X) - 1, count).astype(int)
    X, y = _safe_indexing(X, rows), _safe_indexing(y, rows)
    if hasattr(net, "classes_") and y.ndim == 1 and not np.array_equal(np.unique(y), net.classes_):
        return []
    took = [_epoch_seconds(net, chosen, X, y) for chosen in (policy, "none")]
    spent, ratio = float(np.median([record["seconds"] for record in history])), took[1] / took[0]
    return [
        f"<p>An epoch of copies of the network on {count:,} of these samples took {took[0]:.3g} s with {_safe(policy.name)} "
        f"and {took[1]:.3g} s without dropout, measured now. By this ratio, {ratio:.2f}, dropout has "
        f"{'saved' if ratio >= 1 else 'cost'} about {abs(spent * (ratio - 1)) * len(history):.3g} s in this training, of "
        f"{len(history)} epochs of {spent:.3g} s (median).</p>"
    ]


def _epoch_seconds(net: Any, dropout: Any, X: Any, y: Any) -> float:
    """The median seconds of an epoch of a copy, of the later half of as many epochs as end within `PATIENCE`, at least 2."""
    began = time.perf_counter()

    def late(_: Any, record: dict[str, Any]) -> bool:
        return record["epoch"] > 1 and time.perf_counter() - began > PATIENCE

    others = {"early_stopping": False, "warm_start": False, "learning_rate_schedule": None, "verbose": 0}
    copy = clone(net).set_params(dropout=dropout, epochs=EPOCHS, callbacks=[late], **others)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # what these fits reach does not matter
        copy.fit(X, y)
    return float(np.median([record["seconds"] for record in copy.history_[len(copy.history_) // 2 :]]))


def _confusion(classes: np.ndarray, y: np.ndarray, found: np.ndarray) -> list[str]:
    known = np.isin(y, classes)  # others were never learned
    y, found = y[known], found[known]
    counts = np.zeros((len(classes), len(classes)), int)
    np.add.at(counts, (np.searchsorted(classes, y), np.searchsorted(classes, found)), 1)
    parts = ["<h3>Confusion matrix</h3>"]
    if len(classes) <= MOST_CLASSES:
        parts += ["<p>Rows are the true classes, columns the predicted ones.</p>", _matrix(classes, counts)]
    else:
        parts.append(drawings.matrix(counts))
    wrong = counts - np.diag(np.diag(counts))
    pairs = [at for at in np.argsort(-wrong, axis=None, kind="stable")[:CONFUSED] if wrong.flat[at]]
    if pairs:
        names = [_safe(str(name)) for name in classes]
        said = (f"{names[at // len(names)]} as {names[at % len(names)]} ({wrong.flat[at]})" for at in pairs)
        parts.append(f"<p>Most often mistaken: {', '.join(said)}.</p>")
    return parts


def _matrix(classes: np.ndarray, counts: np.ndarray) -> str:
    """The confusion matrix as a table; a cell is the darker, the larger its share of the true class."""
    shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
    heads = "".join(f'<th scope="col">{_safe(str(name))}</th>' for name in classes)
    rows = []
    for i, (name, own) in enumerate(zip(classes, counts)):
        cells = "".join(
            f'<td style="background: rgba({"59,130,196" if i == j else "217,119,6"}, {0.5 * shares[i, j]:.2f})">{count}</td>'
            for j, count in enumerate(own)
        )
        rows.append(f'<tr><th scope="row">{_safe(str(name))}</th>{cells}</tr>')
    return f'<div class="wide"><table><tr><td></td>{heads}</tr>{"".join(rows)}</table></div>'


# --- HTML -------------------------------------------------------------------------------------------------------------
def _safe(text: str) -> str:
    return html.escape(text, quote=True)


def _table(heads: Sequence[str], rows: Iterable[Sequence[str]], texts: int) -> str:
    """A table, of which the first `texts` columns hold text and the others numbers; nothing if there are no rows."""
    first = "".join(f'<th scope="col"{" class=text" * (i < texts)}>{_safe(head)}</th>' for i, head in enumerate(heads))
    body = "".join(f"<tr>{''.join(_cell(cell, i < texts) for i, cell in enumerate(row))}</tr>" for row in rows)
    return f'<div class="wide"><table><tr>{first}</tr>{body}</table></div>' if body else ""


def _cell(text: str, left: bool) -> str:
    kind = (" class=long" if len(text) > 60 else " class=text") * left
    return f"<td{kind}>{_safe(text)}</td>"
