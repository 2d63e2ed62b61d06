"""What the estimators are given: the parameters that they share, and how a constructor stores them."""
from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

SHARED = {"activation": "relu", "dropout": "none", "dropout_rate": 0.5, "optimizer": "sgd", "learning_rate": 0.01,
          "momentum": 0.9, "nesterov": False, "weight_decay": 0.0, "clip_norm": None, "schedule": None, "epochs": 20,
          "batch_size": 128, "warm_start": False, "sparsity": None, "augment": None, "image_shape": None,
          "early_stopping": False, "validation_fraction": 0.1, "patience": 5, "callbacks": None, "device": "auto",
          "precision": "float32", "n_jobs": None, "random_state": None, "verbose": 0}
PARAMETERS = """
    Parameters
    ----------
    layers : tuple of int, str or sequence of Layer, default=(256,)
        Widths of the hidden layers; the name of a network for images, "lenet5", "alexnet" or "vgg19"; or the layers themselves,
        from input to output, which `fit` copies and trains on from their present weights. These may take samples of any shape,
        and integers where the first is an `Embedding`.
    image_shape : tuple of int or None, default=None
        (C, H, W) of samples that are given flat, such as in pipelines: they are reshaped to it.
    activation : {"relu", "tanh", "sigmoid", "gelu"}, default="relu"
        Between hidden layers given by their widths.
    dropout : {"none", "bernoulli", "rdp", "tdp", "batchwise", "rsdp", "bsdp", "dsg"}, Dropout or None, default="none"
        What is dropped in each training step (`numbanet.dropout`), None for nothing; a policy object brings its own rate.
        Layers that are built from widths are made for it: their initial weights have less variance where sums are thinned out
        (`Linear`, keep), and before tiles features come nearly centred and in random order (`Shuffle`).
    dropout_rate : float, callable, or sequence of these, default=0.5
        Probability to drop, in [0, 1), for all hidden layers or one for each; or a function that gives it for an epoch, counted
        from 0, such as `SkewNormalSchedule`. Initial weights are then made for the mean over `epochs`.
    optimizer : {"sgd", "adam", "adamw"} or callable, default="sgd", for a regressor "adam"
        How weights follow the gradient; a callable, such as a subclass of `Optimizer`, is given parameters and learning rate.
        Adam's step is bounded whatever the gradient: that of least squares is not. "adamw" is Adam with a `weight_decay` that
        is taken off the weights, apart from the gradient.
    learning_rate : float, default=0.01, for a regressor 0.001
        Step size; 0.01 suits SGD with momentum, 0.001 Adam.
    momentum : float, default=0.9
        Of SGD, in [0, 1).
    nesterov : bool, default=False
        Nesterov's form of momentum, for SGD.
    weight_decay : float, default=0.0
        L2 penalty on all parameters, which adds weight_decay * w to the gradient; for "adamw" the share of each weight that a
        step takes off it, divided by the learning rate, of which 0.01 is usual.
    clip_norm : float or None, default=None
        Largest norm of all gradients as one vector: larger ones are scaled down to it, as recurrent networks need it.
    schedule : {"cosine", "linear"}, callable or None, default=None
        Factor on the learning rate as a function of the epoch, counted from 0.
    epochs : int, default=20
        Passes over the samples.
    batch_size : int, default=128
        Samples of a step, as in the papers.
    warm_start : bool, default=False
        Whether `fit` trains on from the weights that it finds, where there are some, with a new optimiser and a new history, in
        place of new weights; the data must have the same features and classes, all of them, as for scikit-learn's networks.
    sparsity : Sparsity or None, default=None
        How the network becomes sparse while it learns, such as `GroupLasso(1e-4, groups="rows")`: what is zero leaves it, and
        training goes on with smaller arrays; or how `SparseLinear` layers find their entries, `Rewire()`.
    augment : callable or None, default=None
        What training does to the samples of each step first, such as `FlipsAndCrops()`: augment(x, rng, dev) gives an array of
        the same shape on the same device, where the CPU has NumPy's. Prediction and validation do without.
    early_stopping : bool, default=False
        Whether to stop when the score on held-out samples does not improve for `patience` epochs, and to keep the best weights.
        Classes are held out in their shares, unless one has a single sample: then by chance, with a warning.
    validation_fraction : float, default=0.1
        Share of the samples held out for early stopping, in (0, 1); not used where `fit` is given validation data.
    patience : int, default=5
        Epochs without improvement before stopping.
    callbacks : sequence of callable or None, default=None
        Each is called after every epoch as callback(net, record); training stops where one returns True.
    device : {"auto", "cpu", "cuda", "emulated"}, default="auto"
        Where to run: CUDA if a GPU answers, else the CPU. "emulated" runs the CUDA kernels on the CPU, for looking into them.
    precision : {"float32", "tf32"}, default="float32"
        Of matrix products on CUDA. "tf32" keeps 10 bits of the operands' mantissas, for tensor cores (compute capability 8.0
        and above, and the emulated device); sums, updates and all else stay float32. No effect elsewhere. "float32" may use
        tensor cores as well, in three passes that together keep its bits, where the card is found to be faster that way.
    n_jobs : int or None, default=None
        Threads of the CPU to use, at most; None or -1 for as many as BLAS has (by cores, or its environment variables).
    random_state : int, RandomState or None, default=None
        Seed of initial weights, shuffling and plans: same seed, same result; bit for bit on the CPU with the same number of
        threads.
    verbose : int, default=0
        1 shows a progress bar on a terminal; elsewhere, as in a file or a notebook, it prints a line an epoch.
"""

ELSEWHERE = {  # by its name in scikit-learn's MLPs: what it is here, and what there is to say of it
    "hidden_layer_sizes": ("layers", ""), "max_iter": ("epochs", ""), "learning_rate_init": ("learning_rate", ""),
    "alpha": ("weight_decay", ", which is alpha divided by the batch size, and counts for biases as well"),
    "solver": ("optimizer", ", 'sgd', 'adam' or 'adamw'"), "nesterovs_momentum": ("nesterov", ""),
    "n_iter_no_change": ("patience", ", of early_stopping"),
    "tol": ("early_stopping", ", which looks at held-out samples; without it all epochs are trained"),
    "power_t": ("schedule", ", a function of the epoch"),
    "shuffle": ("random_state", ": samples always come in random order, and it says which"),
    **dict.fromkeys(("beta_1", "beta_2", "epsilon"), ("optimizer", ", which may be a function of parameters and learning rate "
                                                                  "that makes an Adam with other numbers")),
}


def hint(name: str, known: Mapping[str, Any]) -> str:
    """What a parameter of scikit-learn's networks is called here, for an error; nothing for other names."""
    own, more = ELSEWHERE.get(name, ("", ""))
    return f": here it is {own!r}{more}" if own in known and name not in known else ""


def storing(parameters: Mapping[str, Any], first: str = "layers", default: Any = (256,)) -> Callable[..., None]:
    """An `__init__` that stores its first argument and these parameters, as scikit-learn wants it, and does nothing else."""
    kinds = inspect.Parameter
    signature = inspect.Signature([kinds("self", kinds.POSITIONAL_OR_KEYWORD),
                                   kinds(first, kinds.POSITIONAL_OR_KEYWORD, default=default),
                                   *(kinds(name, kinds.KEYWORD_ONLY, default=value) for name, value in parameters.items())])

    def __init__(*given: Any, **named: Any) -> None:
        for name in named:
            if name not in signature.parameters:
                raise TypeError(f"{type(given[0]).__name__} has no parameter {name!r}{hint(name, signature.parameters)}")
        bound = signature.bind(*given, **named)
        bound.apply_defaults()
        self = bound.arguments.pop("self")
        for name, value in bound.arguments.items():
            setattr(self, name, value)

    __init__.__signature__ = signature
    return __init__
