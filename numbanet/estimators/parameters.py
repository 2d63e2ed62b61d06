"""The parameters of the estimators, with their documentation, and the constructor that stores them."""

from __future__ import annotations

import difflib
import inspect
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

from ..dropout import POLICIES


class Parameter(NamedTuple):
    """One parameter of an estimator: name, default, type and documentation."""

    name: str
    default: Any
    kind: str
    text: str


def by_name(*parameters: Parameter) -> dict[str, Parameter]:
    """Return a dict from the name of each parameter to the parameter."""
    return {parameter.name: parameter for parameter in parameters}


def changed(parameters: Mapping[str, Parameter], **defaults: Any) -> dict[str, Parameter]:
    """Return a copy of the parameters in which some have other defaults."""
    return {**parameters, **{name: parameters[name]._replace(default=value) for name, value in defaults.items()}}


def documented(parameters: Iterable[Parameter]) -> str:
    """Return the "Parameters" section of the docstring of a class with these parameters."""
    lines = ["Parameters", "----------"]
    for parameter in parameters:
        default = json.dumps(parameter.default) if isinstance(parameter.default, str) else repr(parameter.default)
        lines += [
            f"{parameter.name} : {parameter.kind}, default={default}",
            textwrap.indent(inspect.cleandoc(parameter.text), "    "),
        ]
    return textwrap.indent("\n".join(lines), "    ").lstrip()


def choices(names: Iterable[str]) -> str:
    """Return the allowed values of a parameter in the notation of docstrings, such as {"a", "b"}."""
    return f"{{{', '.join(map(json.dumps, names))}}}"


SHARED = by_name(
    Parameter(
        "layers",
        (256,),
        "tuple of int, str or sequence of Layer",
        """
        Widths of the hidden layers; or the name of a network for images, "lenet5", "alexnet" or "vgg19"; or a list of `Layer`,
        from input to output. `fit` trains copies of these layers from their current weights; if `random_state` is set, layers
        that were made without `rng` get new initial weights. A list of layers may take samples of any shape, and integers if
        the first layer is an `Embedding`.""",
    ),
    Parameter(
        "image_shape",
        None,
        "tuple of int or None",
        """
        The shape (C, H, W) of an image, to which flat samples, for example from a pipeline, are reshaped. None: samples keep
        their shape. Networks given by their widths take flat samples, whatever it is.""",
    ),
    Parameter(
        "activation",
        "relu",
        '{"relu", "tanh", "sigmoid", "gelu"}',
        """
        Activation after each hidden layer, if `layers` are widths.""",
    ),
    Parameter(
        "init",
        "glorot",
        '{"he", "glorot", "fan_in"}',
        """
        Distribution of initial weights, if `layers` are widths (`Linear`). With "glorot", as in scikit-learn, and "fan_in", as
        in PyTorch, biases are uniform. With "he", biases are 0 (a classifier's last ones: `output_bias`); layers before ReLU
        and GELU have He's distribution, and the others have Glorot's. On tables of few features, networks with "he" predicted
        worse (`python -m bench tables`).""",
    ),
    Parameter(
        "output_init",
        None,
        '{"small"} or None',
        """
        Initial weights of the last layer, if `layers` are widths. None: as `init` says. With "small" they have a hundredth of
        the standard deviation (after sigmoids a tenth), and biases of regressors are 0, so that an untrained network predicts
        about the mean of y, and a classifier how often the classes occur (`output_bias`); with a loss that does not standardise
        y, about 0. On tables, regressors learned more with it, and classifiers less (`python -m bench tables`). Under SGD a
        `GroupLasso` removes more with it: hidden layers learn little before the last one has grown.""",
    ),
    Parameter(
        "dropout",
        "none",
        f"{choices([*POLICIES, 'auto'])}, Dropout or None",
        """
        The dropout policy of training (`numbanet.dropout`). None: no dropout, as "none". "auto" chooses, for wide layers and
        many features, "window" in the first three quarters of the epochs, or "batchwise" if samples are few, else "none"
        (`numbanet.dropout.auto` has the rule); `verbose` prints why, and it is in `history_`. A policy object has a rate, so
        `dropout_rate` is then not used. If `layers` are widths and dropout drops inputs of a layer's neurons, the layer's
        initial weights have less variance (`variance_factor` of `Linear`). A `Shuffle` before tile dropout permutes the
        features and subtracts most of their mean.""",
    ),
    Parameter(
        "dropout_rate",
        0.5,
        "float, callable, or sequence of these",
        """
        Dropout probability, in [0, 1): one rate for all hidden layers or one for each; or a function of the epoch, counted
        from 0, such as `SkewNormalSchedule`. The variance of initial weights is then that for the mean rate over `epochs`.""",
    ),
    Parameter(
        "optimizer",
        "sgd",
        '{"sgd", "adam", "adamw"} or callable',
        """
        The optimiser; a callable, such as a subclass of `Optimizer`, is called with parameters and learning rate. It sets
        `momentum`, `nesterov`, `weight_decay` and `clip_norm` itself, and parameters that it leaves out are not trained. The
        steps of Adam are bounded for any gradient; those of SGD are not, which matters for least squares. "adamw" is Adam
        with decoupled `weight_decay`.""",
    ),
    Parameter(
        "learning_rate",
        None,
        "float or None",
        """
        Step size of the optimiser. None: 0.02 for SGD with momentum and for user-defined optimisers, 0.001 for Adam.""",
    ),
    Parameter(
        "momentum",
        0.9,
        "float",
        """
        Momentum of SGD, in [0, 1).""",
    ),
    Parameter(
        "nesterov",
        False,
        "bool",
        """
        If True, SGD uses Nesterov momentum.""",
    ),
    Parameter(
        "weight_decay",
        0.0,
        "float",
        """
        L2 penalty on all parameters: weight_decay * w is added to the gradient. With "adamw", each step subtracts
        learning_rate * weight_decay * w instead; 0.01 is usual.""",
    ),
    Parameter(
        "clip_norm",
        None,
        "float or None",
        """
        Maximal norm of all gradients taken as one vector; larger gradients are scaled down to it. Recurrent networks
        need it. None: they are not scaled.""",
    ),
    Parameter(
        "learning_rate_schedule",
        None,
        '{"cosine", "linear"}, callable or None',
        """
        Factor of the learning rate as a function of the epoch, counted from 0. None: the rate is the same in all epochs.""",
    ),
    Parameter(
        "epochs",
        None,
        "int or None",
        """
        Number of passes over the samples. None: 20, or more if there are few samples, so that there are at least 1,000 steps;
        with fewer steps, scores were lower on most data sets of `python -m bench tables`.""",
    ),
    Parameter(
        "batch_size",
        None,
        "int or None",
        """
        Number of samples per step. None: 128, as in the papers, or 1/32 of the samples if there are fewer than
        4,096, but at least 32.""",
    ),
    Parameter(
        "warm_start",
        False,
        "bool",
        """
        If True, `fit` continues from the current weights, with a new optimiser and history, instead of new weights. The data
        must have the same features and all the same classes, as in scikit-learn's networks, and the parameters that determine
        the network must not have changed. A network that `MagnitudePruning` has pruned, or `GroupLasso` has freed of tiles,
        stays as sparse as it is.""",
    ),
    Parameter(
        "sparsity",
        None,
        "Sparsity or None",
        """
        The method that makes the network sparse during training. For example, `GroupLasso(1e-4, groups="rows")` removes groups
        of weights that become zero, so that training continues with smaller arrays. `Rewire()` moves the entries of
        `SparseLinear` layers. None: the network keeps its weights.""",
    ),
    Parameter(
        "augment",
        None,
        "callable or None",
        """
        Data augmentation of each training step, for example `FlipsAndCrops()`: augment(x, rng, dev) returns an array of the
        same shape on the same device (NumPy on the CPU). Prediction and validation do not use it.
        None: samples are used as they are.""",
    ),
    Parameter(
        "early_stopping",
        False,
        "bool",
        """
        If True, training stops if the score on held-out samples does not improve for `patience` epochs, and the best weights
        are restored. The held-out samples are stratified by class; if a class has only one sample, they are not, with a
        warning.""",
    ),
    Parameter(
        "validation_fraction",
        0.1,
        "float",
        """
        Share of the samples held out for early stopping, in (0, 1); not used if `fit` is called with `validation`.""",
    ),
    Parameter(
        "patience",
        5,
        "int",
        """
        Number of epochs without improvement before early stopping.""",
    ),
    Parameter(
        "scoring",
        None,
        "str, callable or None",
        """
        The score that is recorded as validation_score and that early stopping maximises: the name of a scikit-learn scorer, or
        a function scorer(estimator, X, y). None: the score of the task, accuracy or for numbers R² (with another loss than the
        squared one: the share of the loss of a constant that is gone), in which held-out samples have their sample and class
        weights; with `scoring`, and with the samples of `fit(validation=...)`, all count alike. A scorer that is named is tried
        before training.""",
    ),
    Parameter(
        "callbacks",
        None,
        "sequence of callable and Hook, or None",
        """
        Functions, called after every epoch as callback(estimator, record); training stops if one returns True. Or `Hook`
        objects, such as `ReduceLROnPlateau` or `ModelCheckpoint`, which are also called at other times. None: nothing is
        called.""",
    ),
    Parameter(
        "device",
        "auto",
        '{"auto", "cpu", "cpu:1", "cuda", "emulated", "torch"} or the name of another device',
        """
        The device; "auto" is CUDA if a GPU is available, else the CPU. "cpu:1" is the CPU with one thread. "emulated" runs the
        CUDA kernels on the CPU, slowly, for tests. "torch" is the CPU with PyTorch's products and convolutions.""",
    ),
    Parameter(
        "objective",
        None,
        '{None, "time", "energy", "edp"}',
        """
        What `device="auto"` chooses devices by. None: one device for all layers, without measuring. Otherwise `fit` measures
        each layer on each device of this machine, or reads what was measured before, and places each layer so that a training
        step takes the least time, energy, or product of both ("edp"); `placement_` says where (`numbanet.placement`).""",
    ),
    Parameter(
        "precision",
        "float32",
        '{"float32", "tf32"}',
        """
        Precision of matrix products on CUDA; no effect elsewhere. "tf32" keeps 10 bits of the operands' mantissas, for tensor
        cores (compute capability 8.0 and above, and the emulated device); sums and updates stay float32. "float32" also uses
        tensor cores if they are faster on the card, in three passes that together keep float32 precision.""",
    ),
    Parameter(
        "n_jobs",
        None,
        "int or None",
        """
        Largest number of CPU threads. None or -1: the number of threads of BLAS, all cores unless its environment variables
        say otherwise.""",
    ),
    Parameter(
        "parallel",
        None,
        '{"mpi"}, Ranks or None',
        """
        "mpi": the processes that `mpiexec` or `srun` has started train one model together (`numbanet.parallel`). All call `fit`
        and have the same weights at the end. `batch_size` is that of all; each process trains on its share of every batch, and
        only gradients of kept weights travel. Policies of your own that choose from data need `agrees`. None: one process
        trains.""",
    ),
    Parameter(
        "shard",
        False,
        "bool or callable",
        """
        If `parallel` is set: False, each process is given all samples; True, samples of its own; or a function
        shard(rank, size) that returns the rows, as a slice or indices, that a process takes of the samples it is given.""",
    ),
    Parameter(
        "random_state",
        None,
        "int, RandomState or None",
        """
        Seed of initial weights, sample order and plans. The same seed gives the same result; on the CPU it is bitwise
        equal if the number of threads is the same. None: NumPy's global generator, so that each fit gives another result.""",
    ),
    Parameter(
        "verbose",
        0,
        "int",
        """
        1 shows a progress bar on a terminal; elsewhere, for example in a file or a notebook, it prints a line per epoch.""",
    ),
)

ELSEWHERE = {  # the name of a parameter in other libraries: (the name here, further explanation)
    **dict.fromkeys(
        ("hidden_layer_sizes", "hidden", "hidden_size", "hidden_sizes", "hidden_layers"), ("layers", ", the first argument")
    ),
    "layers": ("hidden", ", the first argument"),
    "lr": ("learning_rate", ""),
    "seed": ("random_state", ""),
    **dict.fromkeys(("p", "rate", "dropout_p"), ("dropout_rate", "")),
    "max_iter": ("epochs", ""),
    "learning_rate_init": ("learning_rate", ""),
    "alpha": ("weight_decay", ", which is alpha divided by the batch size, and counts for biases as well"),
    "solver": ("optimizer", ", 'sgd', 'adam' or 'adamw'"),
    "nesterovs_momentum": ("nesterov", ""),
    "n_iter_no_change": ("patience", ", of early_stopping"),
    "tol": ("early_stopping", ", which uses held-out samples; without it all epochs are trained"),
    "power_t": ("learning_rate_schedule", ", a function of the epoch"),
    "max_fun": ("epochs", "; there is no L-BFGS here, whose calls it counts"),
    "shuffle": ("random_state", ": the order of samples is always random, and determined by it"),
    **dict.fromkeys(
        ("beta_1", "beta_2", "epsilon"),
        ("optimizer", ", which may be a function of parameters and learning rate that returns an Adam with other settings"),
    ),
}


def hint(name: str, known: Mapping[str, Any]) -> str:
    """Return the end of an error message about an unknown parameter: what the parameter of this name in scikit-learn, PyTorch
    or Keras is called here, or a similar name; "" if there is none.
    """
    here, more = ELSEWHERE.get(name, ("", ""))
    if here == "layers" and here not in known:  # a language model
        here, more = ELSEWHERE[here]
    if here in known and name not in known:
        return f": here it is {here!r}{more}"
    similar = [] if name in known or "__" in name else difflib.get_close_matches(name, known, 1)
    return f"; did you mean {similar[0]!r}?" if similar else ""


def storing(parameters: Mapping[str, Parameter]) -> Callable[..., None]:
    """Return an `__init__` that only stores these parameters, as scikit-learn requires. All but the first are keyword-only."""
    kinds = inspect.Parameter
    (first, *_), passing = parameters, (kinds.POSITIONAL_OR_KEYWORD, kinds.KEYWORD_ONLY)
    signature = inspect.Signature(
        [
            kinds("self", passing[0]),
            *(kinds(name, passing[name != first], default=parameter.default) for name, parameter in parameters.items()),
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
