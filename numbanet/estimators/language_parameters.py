"""The parameters of `LanguageModel`, with their documentation, and checks of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..arguments import check_count, is_integer
from ..dropout import POLICIES, Dropout, policy
from .parameters import SHARED, Parameter, by_name, choices

DROPOUTS = {
    name: kind for name, kind in POLICIES.items() if kind.kind != "patches" and not kind.data_dependent
}  # the policies that `LanguageModel._layers` supports
# the policies that `dropout.recurrent` supports
RECURRENT = [name for name, kind in DROPOUTS.items() if kind.kind == "output" and not kind.by_sample]

OWN = by_name(
    Parameter(
        "hidden",
        (650, 650),
        "int or tuple of int",
        """
        Widths of the LSTM layers.""",
    ),
    Parameter(
        "steps",
        35,
        "int",
        """
        Number of time steps through which gradients are propagated back.""",
    ),
    Parameter(
        "embedding",
        None,
        "int or None",
        """
        Length of the vector of a word. None: the width of the first LSTM layer; if `tied`, of the last.""",
    ),
    Parameter(
        "vocabulary_size",
        None,
        "int or None",
        """
        Largest number of words in the vocabulary: the most frequent words are kept, and all others become `unknown`. None: all
        words of the text. If texts are integers, the number of symbols.""",
    ),
    Parameter(
        "unknown",
        "<unk>",
        "str",
        """
        The word that replaces words not in the vocabulary.""",
    ),
    Parameter(
        "tied",
        False,
        "bool",
        """
        If True, the last layer shares its weight with the embedding (Press & Wolf 2017); `embedding` must then be the last
        layer's width.""",
    ),
    Parameter(
        "recurrent_dropout",
        "none",
        f"{choices(RECURRENT)} or Dropout",
        """
        The policy that drops units of h[t-1] in the product with W_hh (`LSTM`), the same units for all samples of a batch.""",
    ),
    Parameter(
        "recurrent_dropout_rate",
        0.25,
        "float, callable, or sequence of these",
        """
        Rate of recurrent_dropout, unless that is a policy object: one rate, or one for each LSTM layer; or a function of the
        epoch.""",
    ),
    Parameter(
        "recurrent_sampling",
        "sequence",
        '{"sequence", "step", "outputs"}',
        """
        "sequence": the dropped units are the same for all time steps of a batch, which saves most time. "step": they are drawn
        at each time step; only with "rdp". "outputs": they are those that the layer's outputs drop, which saves the gradients
        of their gates as well; only with "window", and if `dropout` is "window" at the same rate.""",
    ),
    Parameter(
        "gate_sparsity",
        0.0,
        "float or GateSparsity",
        """
        Share of the gate gradients that are not computed; or a policy object, which also has a mode and a schedule.""",
    ),
    Parameter(
        "gate_mode",
        "columns",
        '{"columns", "threshold"}',
        """
        The method by which gate gradients are selected (`GateSparsity`).""",
    ),
    Parameter(
        "gate_schedule",
        0.8,
        "float or callable",
        """
        The steps with sparse gate gradients: by default the first 80 % of a fit (`GateSparsity`).""",
    ),
    Parameter(
        "dropout",
        "none",
        f"{choices(DROPOUTS)} or Dropout",
        """
        The dropout policy of training (`numbanet.dropout`). A policy object has a rate, so `dropout_rate` is then not used. The
        names "rdp" and "tdp" are policies with scale="pattern", so that in every step logits have the same magnitude as without
        dropout.""",
    ),
    Parameter(
        "dropout_rate",
        0.5,
        "float, callable, or sequence of these",
        """
        Dropout probability, in [0, 1): one rate, or one for the embedding and each LSTM layer; or a function of the epoch.""",
    ),
    Parameter(
        "learning_rate",
        None,
        "float or None",
        """
        Step size. None: 5.0 for SGD, which has no momentum by default and clips gradients, so that its steps are bounded, and
        for user-defined optimisers; 0.003 for Adam, with which small texts are learned about as fast. With 5.0 the result of
        the first epoch hardly depends on the seed. In recorded runs (`lstm-rates`), the final perplexity was lower with 5.0
        than with 20 on average, on a small text after the default number of epochs and on a larger text after four. On the
        larger text, training was faster with 10, or with 20 and clip_norm=0.1.""",
    ),
    Parameter(
        "momentum",
        0.0,
        "float",
        """
        Momentum of SGD, in [0, 1).""",
    ),
    Parameter(
        "batch_size",
        20,
        "int",
        """
        Number of segments of the text that are read in parallel.""",
    ),
    Parameter(
        "clip_norm",
        0.25,
        "float or None",
        """
        Maximal norm of all gradients taken as one vector; larger gradients are scaled down to it. None: they are not
        scaled.""",
    ),
    Parameter(
        "warm_start",
        False,
        "bool",
        """
        If True, `fit` continues from the current weights and vocabulary, with a new optimiser and history, instead of new
        weights; the parameters that determine the network must not have changed.""",
    ),
    Parameter(
        "sparsity",
        None,
        "Sparsity or None",
        """
        The method that makes the network sparse during training: `MagnitudePruning` sets weights of LSTM layers to zero.
        None: the network keeps its weights.""",
    ),
    Parameter(
        "early_stopping",
        False,
        "bool",
        """
        If True, training stops if validation_score does not improve for `patience` epochs, and the best weights are
        restored.""",
    ),
    Parameter(
        "validation_fraction",
        0.1,
        "float",
        """
        Share of the text, at its end, held out for early stopping, in (0, 1); not used if `fit` is called with
        `validation`.""",
    ),
    Parameter(
        "scoring",
        None,
        "callable or None",
        """
        The score that is recorded as validation_score and that early stopping maximises: a function scoring(model, tokens).
        None: `score`.""",
    ),
)
PARAMETERS = {
    **OWN,
    **{
        name: SHARED[name]
        for name in (
            "optimizer",
            "nesterov",
            "weight_decay",
            "learning_rate_schedule",
            "patience",
            "callbacks",
            "device",
            "precision",
            "n_jobs",
            "parallel",
            "shard",
            "random_state",
            "verbose",
        )
    },
    **by_name(
        SHARED["epochs"]._replace(
            default=20,
            kind="int",
            text="""
        Number of passes over the text.""",
        )
    ),
}


def lstm_widths(hidden: Any) -> tuple[int, ...]:
    """Return the parameter `hidden` as the widths of the LSTM layers; raise ValueError if it is invalid."""
    widths = (hidden,) if is_integer(hidden) else hidden
    several = isinstance(widths, Sequence) or (isinstance(widths, np.ndarray) and widths.ndim == 1)
    if isinstance(widths, str) or not several or not len(widths):
        raise ValueError(f"hidden must be an integer or a tuple of integers, the widths of the LSTM layers; got {hidden!r}")
    return tuple(check_count("hidden", width) for width in widths)


def recurrent_policy(dropout: Any, rate: Any, layers: int, epochs: int) -> Dropout:
    """Return the policy of `recurrent_dropout` for a fit of LSTM layers; raise ValueError if its rates are invalid in an epoch,
    or are not one for each layer.
    """
    chosen = policy(dropout, rate, "recurrent_dropout", RECURRENT)
    if isinstance(chosen.rate, tuple) and len(chosen.rate) != layers and chosen.name != "none":
        name = "recurrent_dropout" if isinstance(dropout, Dropout) else "recurrent_dropout_rate"
        raise ValueError(f"{name} has {len(chosen.rate)} rates for {layers} LSTM layers: give one rate, or one for each layer")
    try:
        chosen.over(epochs).at_mean_rate(epochs)
    except ValueError as error:
        given = "recurrent_dropout" if isinstance(dropout, Dropout) else "recurrent_dropout_rate"
        raise ValueError(str(error).replace("dropout_rate", given)) from error
    return chosen
