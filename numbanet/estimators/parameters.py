"""What the estimators are given: the parameters that they share, and how a constructor stores them."""

from __future__ import annotations

import inspect
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ..dropout import POLICIES


class Parameter(NamedTuple):
    """One parameter of an estimator: its name, default, kinds of values, and what it is."""

    name: str
    default: Any
    kind: str
    text: str


def by_name(*parameters: Parameter) -> dict[str, Parameter]:
    """The parameters by their names."""
    return {parameter.name: parameter for parameter in parameters}


def changed(parameters: Mapping[str, Parameter], **defaults: Any) -> dict[str, Parameter]:
    """The parameters, some of them with other defaults."""
    return {**parameters, **{name: parameters[name]._replace(default=value) for name, value in defaults.items()}}


def documented(parameters: Iterable[Parameter]) -> str:
    """The section of a class's docstring about its parameters."""
    lines = ["Parameters", "----------"]
    for parameter in parameters:
        default = json.dumps(parameter.default) if isinstance(parameter.default, str) else repr(parameter.default)
        lines += [
            f"{parameter.name} : {parameter.kind}, default={default}",
            textwrap.indent(inspect.cleandoc(parameter.text), "    "),
        ]
    return textwrap.indent("\n".join(lines), "    ").lstrip()


def choices(names: Iterable[str]) -> str:
    """Names that a parameter may have, as docstrings have them."""
    return f"{{{', '.join(map(json.dumps, names))}}}"


SHARED = by_name(
    Parameter(
        "layers",
        (256,),
        "tuple of int, str or sequence of Layer",
        """
        Widths of the hidden layers; the name of a network for images, "lenet5", "alexnet" or "vgg19"; or the layers themselves,
        from input to output, which `fit` copies and trains on from their present weights, or from new ones, if a layer was made
        without `rng` and there is a `random_state`. These may take samples of any shape, and integers where the first is an
        `Embedding`.""",
    ),
    Parameter(
        "image_shape",
        None,
        "tuple of int or None",
        """
        (C, H, W) of samples that are given flat, such as in pipelines: they are reshaped to it.""",
    ),
    Parameter(
        "activation",
        "relu",
        '{"relu", "tanh", "sigmoid", "gelu"}',
        """
        Between hidden layers given by their widths.""",
    ),
    Parameter(
        "init",
        "glorot",
        '{"glorot", "he", "fan_in"}',
        """
        Initial weights of layers given by their widths (`Linear`); their biases are uniform, as PyTorch's. "glorot", as
        scikit-learn has it, learned most on the data sets of `python -m bench tables`.""",
    ),
    Parameter(
        "dropout",
        "none",
        f"{choices(POLICIES)}, Dropout or None",
        """
        What is dropped in each training step (`numbanet.dropout`), None for nothing; a policy object brings its own rate.
        Layers that are built from widths are made for it: their initial weights have less variance where sums are thinned out
        (`Linear`, variance_factor), and before tiles features come nearly centred and in random order (`Shuffle`).""",
    ),
    Parameter(
        "dropout_rate",
        0.5,
        "float, callable, or sequence of these",
        """
        Probability to drop, in [0, 1), for all hidden layers or one for each; or a function that gives it for an epoch, counted
        from 0, such as `SkewNormalSchedule`. Initial weights are then made for the mean over `epochs`.""",
    ),
    Parameter(
        "optimizer",
        "sgd",
        '{"sgd", "adam", "adamw"} or callable',
        """
        How weights follow the gradient; a callable, such as a subclass of `Optimizer`, is given parameters and learning rate.
        Adam's step is bounded whatever the gradient: that of least squares is not. "adamw" is Adam with a `weight_decay` that
        is taken off the weights, apart from the gradient.""",
    ),
    Parameter(
        "learning_rate",
        None,
        "float or None",
        """
        Step size; None for what suits the optimiser: 0.01 for SGD with momentum, 0.001 for Adam. Optimisers of one's own are
        given that of SGD.""",
    ),
    Parameter(
        "momentum",
        0.9,
        "float",
        """
        Of SGD, in [0, 1).""",
    ),
    Parameter(
        "nesterov",
        False,
        "bool",
        """
        Nesterov's form of momentum, for SGD.""",
    ),
    Parameter(
        "weight_decay",
        0.0,
        "float",
        """
        L2 penalty on all parameters, which adds weight_decay * w to the gradient; for "adamw" the share of each weight that a
        step takes off it, divided by the learning rate, of which 0.01 is usual.""",
    ),
    Parameter(
        "clip_norm",
        None,
        "float or None",
        """
        Largest norm of all gradients as one vector: larger ones are scaled down to it, as recurrent networks need it.""",
    ),
    Parameter(
        "learning_rate_schedule",
        None,
        '{"cosine", "linear"}, callable or None',
        """
        Factor on the learning rate as a function of the epoch, counted from 0.""",
    ),
    Parameter(
        "epochs",
        None,
        "int or None",
        """
        Passes over the samples. None for 20, or on few samples for as many as make 1,000 steps: with fewer, networks learned
        less on most data sets of `python -m bench tables`.""",
    ),
    Parameter(
        "batch_size",
        None,
        "int or None",
        """
        Samples of a step. None for 128, as in the papers, or on fewer than 4,096 samples for a 32nd of them, at least 32.""",
    ),
    Parameter(
        "warm_start",
        False,
        "bool",
        """
        Whether `fit` trains on from the weights that it finds, where there are some, with a new optimiser and a new history, in
        place of new weights; the data must have the same features and classes, all of them, as for scikit-learn's networks, and
        what makes the network must not have changed.""",
    ),
    Parameter(
        "sparsity",
        None,
        "Sparsity or None",
        """
        How the network becomes sparse while it learns, such as `GroupLasso(1e-4, groups="rows")`: what is zero leaves it, and
        training goes on with smaller arrays; or how `SparseLinear` layers find their entries, `Rewire()`.""",
    ),
    Parameter(
        "augment",
        None,
        "callable or None",
        """
        What training does to the samples of each step first, such as `FlipsAndCrops()`: augment(x, rng, dev) gives an array of
        the same shape on the same device, where the CPU has NumPy's. Prediction and validation do without.""",
    ),
    Parameter(
        "early_stopping",
        False,
        "bool",
        """
        Whether to stop when the score on held-out samples does not improve for `patience` epochs, and to keep the best weights.
        Classes are held out in their shares, unless one has a single sample: then by chance, with a warning.""",
    ),
    Parameter(
        "validation_fraction",
        0.1,
        "float",
        """
        Share of the samples held out for early stopping, in (0, 1); not used if `fit` is given `validation`.""",
    ),
    Parameter(
        "patience",
        5,
        "int",
        """
        Epochs without improvement before stopping.""",
    ),
    Parameter(
        "scoring",
        None,
        "str, callable or None",
        """
        What validation_score and early stopping go by: the name of a scikit-learn scorer, or scorer(estimator, X, y), larger is
        better; None for the estimator's own `score`.""",
    ),
    Parameter(
        "callbacks",
        None,
        "sequence of callable and Hook, or None",
        """
        A function is called after every epoch as callback(estimator, record), and training stops if it returns True; a `Hook`,
        such as `ReduceLROnPlateau` or `ModelCheckpoint`, may do more.""",
    ),
    Parameter(
        "device",
        "auto",
        '{"auto", "cpu", "cuda", "emulated"}',
        """
        Where to run: CUDA if a GPU answers, else the CPU. "emulated" runs the CUDA kernels on the CPU, for looking into
        them.""",
    ),
    Parameter(
        "precision",
        "float32",
        '{"float32", "tf32"}',
        """
        Of matrix products on CUDA. "tf32" keeps 10 bits of the operands' mantissas, for tensor cores (compute capability 8.0
        and above, and the emulated device); sums, updates and all else stay float32. No effect elsewhere. "float32" may use
        tensor cores as well, in three passes that together keep its bits, where the card is found to be faster that way.""",
    ),
    Parameter(
        "n_jobs",
        None,
        "int or None",
        """
        Threads of the CPU to use, at most; None or -1 for as many as BLAS has (by cores, or its environment variables).""",
    ),
    Parameter(
        "random_state",
        None,
        "int, RandomState or None",
        """
        Seed of initial weights, shuffling and plans: same seed, same result; bit for bit on the CPU with the same number of
        threads.""",
    ),
    Parameter(
        "verbose",
        0,
        "int",
        """
        1 shows a progress bar on a terminal; elsewhere, as in a file or a notebook, it prints a line an epoch.""",
    ),
)

ELSEWHERE = {  # by its name in scikit-learn's MLPs: what it is here, and what there is to say of it
    "hidden_layer_sizes": ("layers", ""),
    "max_iter": ("epochs", ""),
    "learning_rate_init": ("learning_rate", ""),
    "alpha": ("weight_decay", ", which is alpha divided by the batch size, and counts for biases as well"),
    "solver": ("optimizer", ", 'sgd', 'adam' or 'adamw'"),
    "nesterovs_momentum": ("nesterov", ""),
    "n_iter_no_change": ("patience", ", of early_stopping"),
    "tol": ("early_stopping", ", which looks at held-out samples; without it all epochs are trained"),
    "power_t": ("learning_rate_schedule", ", a function of the epoch"),
    "shuffle": ("random_state", ": samples always come in random order, and it says which"),
    **dict.fromkeys(
        ("beta_1", "beta_2", "epsilon"),
        ("optimizer", ", which may be a function of parameters and learning rate that makes an Adam with other numbers"),
    ),
}


def hint(name: str, known: Mapping[str, Any]) -> str:
    """What a parameter of scikit-learn's networks is called here, for an error; nothing for other names."""
    own, more = ELSEWHERE.get(name, ("", ""))
    return f": here it is {own!r}{more}" if own in known and name not in known else ""


def storing(parameters: Mapping[str, Parameter]) -> Callable[..., None]:
    """An `__init__` that stores these parameters, as scikit-learn wants it, and does nothing else; all but the first are
    keywords."""
    kinds = inspect.Parameter
    (first, *_), places = parameters, (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    signature = inspect.Signature(
        [
            kinds("self", places[0]),
            *(kinds(name, places[name != first], default=parameter.default) for name, parameter in parameters.items()),
        ]
    )

    def __init__(*given: Any, **named: Any) -> None:
        for name in named:
            if name not in signature.parameters:
                raise TypeError(f"{type(given[0]).__name__} has no parameter {name!r}{hint(name, signature.parameters)}")
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        self = bound.arguments.pop("self")
        for name, value in bound.arguments.items():
            setattr(self, name, value)

    vars(__init__)["__signature__"] = signature
    return __init__
