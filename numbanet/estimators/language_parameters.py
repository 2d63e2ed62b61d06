"""The parameters of `LanguageModel`, with their documentation."""

from __future__ import annotations

from ..dropout import POLICIES
from .parameters import SHARED, Parameter, by_name, choices

DROPOUTS = {
    name: kind for name, kind in POLICIES.items() if kind.kind != "patches" and not kind.data_dependent
}  # see `_layers`
RECURRENT = [name for name, kind in DROPOUTS.items() if kind.kind == "output" and not kind.by_sample]  # see `recurrent`

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
        Number of words that gradients flow back through.""",
    ),
    Parameter(
        "embedding",
        None,
        "int or None",
        """
        Length of a word's vector; None for the width of the first layer.""",
    ),
    Parameter(
        "vocabulary_size",
        None,
        "int or None",
        """
        Maximal number of words, the most frequent ones; all others become `unknown`. None for all words of the text. If the
        text is integers, the number of symbols.""",
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
        Whether the last layer shares its weight with the embedding (Press & Wolf 2017); `embedding` must then be the last
        layer's width.""",
    ),
    Parameter(
        "recurrent_dropout",
        "none",
        f"{choices(RECURRENT)} or Dropout",
        """
        Which units of h[t-1] the product with W_hh leaves out (`LSTM`), the same for all samples of a batch.""",
    ),
    Parameter(
        "recurrent_dropout_rate",
        0.25,
        "float",
        """
        Rate of recurrent_dropout, unless that is a policy object.""",
    ),
    Parameter(
        "recurrent_sampling",
        "sequence",
        '{"sequence", "step"}',
        """
        Whether dropped units are the same for all time steps of a batch, which saves most, or drawn at each ("rdp").""",
    ),
    Parameter(
        "gate_sparsity",
        0.0,
        "float or GateSparsity",
        """
        Share of the gate gradients that backward passes leave out; or a policy object with its own mode and schedule.""",
    ),
    Parameter(
        "gate_mode",
        "columns",
        '{"columns", "threshold"}',
        """
        How gate gradients are left out (`GateSparsity`).""",
    ),
    Parameter(
        "gate_schedule",
        0.8,
        "float or callable",
        """
        In which steps gate gradients are left out: by default in the first 80 % (`GateSparsity`).""",
    ),
    Parameter(
        "dropout",
        "none",
        f"{choices(DROPOUTS)} or Dropout",
        """
        What each training step drops (`numbanet.dropout`); a policy object has its own rate. The names "rdp" and "tdp" stand
        for policies with scale="pattern", so that logits have the same magnitude as without dropout, in every step.""",
    ),
    Parameter(
        "dropout_rate",
        0.5,
        "float, callable, or sequence of these",
        """
        Dropout probability, in [0, 1): one, or one for the embedding and each LSTM layer; or a function of the epoch.""",
    ),
    Parameter(
        "learning_rate",
        None,
        "float or None",
        """
        Step size; None for a default by optimiser: 5.0 for SGD without momentum and with clipping, which bounds the step, 0.003
        for Adam, with which small texts are learned about as fast. With 5.0 the result of the first epoch hardly depends on the
        seed; in the recorded runs (`lstm-rates`) it ends with a lower perplexity than 20 on average, on a small text after the
        default epochs and on a larger one after four. There 10, or 20 with clip_norm=0.1, learn faster. User-defined optimisers
        get that of SGD.""",
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
        Maximal norm of all gradients taken as one vector; larger gradients are scaled down to it.""",
    ),
    Parameter(
        "warm_start",
        False,
        "bool",
        """
        Whether `fit` continues from existing weights and vocabulary, with a new optimiser and history, instead of new weights;
        the parameters that determine the network must not have changed.""",
    ),
    Parameter(
        "sparsity",
        None,
        "Sparsity or None",
        """
        How the network becomes sparse during training: `MagnitudePruning` zeroes weights of LSTM layers.""",
    ),
    Parameter(
        "early_stopping",
        False,
        "bool",
        """
        Whether to stop if validation_score does not improve for `patience` epochs, and to restore the best weights.""",
    ),
    Parameter(
        "validation_fraction",
        0.1,
        "float",
        """
        Share of the text, at its end, held out for early stopping, in (0, 1); unused if `fit` is given `validation`.""",
    ),
    Parameter(
        "scoring",
        None,
        "callable or None",
        """
        The validation_score that early stopping maximises: scoring(model, tokens); None for `score`.""",
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
            "random_state",
            "verbose",
        )
    },
    **by_name(
        SHARED["epochs"]._replace(
            default=20,
            kind="int",
            text="""
        Passes over the text.""",
        )
    ),
}
