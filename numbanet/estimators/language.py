"""LanguageModel: the next word of a text, learned by an LSTM with dropout that saves time.

model = LanguageModel((650, 650), dropout="rdp").fit(words)
model.perplexity(other_words); model.generate(["the"], 20)
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from numbanet_kernels.runtime.interrupt import deferred

from ..arguments import check_count, is_real
from ..autograd import no_grad
from ..device import device
from ..dropout import POLICIES, Dropout, GateSparsity, Rate, RowDropout, TileDropout, Together, policy, recurrent
from ..layers import LSTM, Context, Embedding, Flow, Linear, Sequential, Symbols
from ..tensor import Tensor
from ..training.data import Data
from ..training.loop import train
from ..training.run import Run
from ..training.stepper import Stepper
from ..training.task import LanguageModelling
from ..training.user_warnings import warn
from ..training.validation import Validation
from .base import Estimator
from .parameters import SHARED, Parameter, by_name, choices, documented, storing
from .settings import FitSettings
from .vocabulary import Vocabulary, checked_tokens
from .whole import whole

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
        Words that gradients flow back through.""",
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
        So many words at most, the most frequent ones; all others are `unknown`. None for all words of the text. Where the text
        is integers, how many there are.""",
    ),
    Parameter(
        "unknown",
        "<unk>",
        "str",
        """
        The word for words that are not in the vocabulary.""",
    ),
    Parameter(
        "tied",
        False,
        "bool",
        """
        Whether the last layer's weight is the embedding's (Press & Wolf 2017); `embedding` is then the last layer's width.""",
    ),
    Parameter(
        "recurrent_dropout",
        "none",
        f"{choices(RECURRENT)} or Dropout",
        """
        What of h[t-1] the product with W_hh does not see (`LSTM`), the same for all samples of a batch.""",
    ),
    Parameter(
        "recurrent_dropout_rate",
        0.25,
        "float",
        """
        Its rate, unless it is a policy object.""",
    ),
    Parameter(
        "recurrent_sampling",
        "sequence",
        '{"sequence", "step"}',
        """
        Whether what is dropped is the same for all time steps of a batch, which saves most, or drawn at each ("rdp").""",
    ),
    Parameter(
        "gate_sparsity",
        0.0,
        "float or GateSparsity",
        """
        Share of the gate gradients that backward passes leave out; or a policy object, which brings its own mode and
        schedule.""",
    ),
    Parameter(
        "gate_mode",
        "columns",
        '{"columns", "threshold"}',
        """
        How they are left out (`GateSparsity`).""",
    ),
    Parameter(
        "gate_schedule",
        0.8,
        "float or callable",
        """
        In which steps: in the first 0.8 of them by default (`GateSparsity`).""",
    ),
    Parameter(
        "dropout",
        "none",
        f"{choices(DROPOUTS)} or Dropout",
        """
        What is dropped in each training step (`numbanet.dropout`); a policy object brings its own rate. "rdp" and "tdp" by
        name have scale="pattern", so that a step's logits are as large as without dropout, whatever it keeps.""",
    ),
    Parameter(
        "dropout_rate",
        0.5,
        "float, callable, or sequence of these",
        """
        Probability to drop, in [0, 1): one, or one for the embedding and each LSTM layer; or a function of the epoch.""",
    ),
    Parameter(
        "learning_rate",
        None,
        "float or None",
        """
        Step size; None for what suits the optimiser: 5.0 for SGD without momentum and with clipping, which bounds how far a
        step goes, 0.003 for Adam, with which small texts are learned about as fast. With 5.0, what is learned in the first
        epoch hardly depends on the seed; the recorded runs (`lstm-rates`) end lower than those with 20 in the mean, on a small
        text after the default epochs and on a larger one after four. There 10, or 20 with clip_norm=0.1, learn sooner.
        Optimisers of one's own are given that of SGD.""",
    ),
    Parameter(
        "momentum",
        0.0,
        "float",
        """
        Of SGD, in [0, 1).""",
    ),
    Parameter(
        "batch_size",
        20,
        "int",
        """
        Pieces of the text that are read side by side.""",
    ),
    Parameter(
        "clip_norm",
        0.25,
        "float or None",
        """
        Largest norm of all gradients as one vector: larger ones are scaled down to it.""",
    ),
    Parameter(
        "warm_start",
        False,
        "bool",
        """
        Whether `fit` trains on from the weights and the vocabulary that it finds, where there are some, with a new optimiser
        and a new history, in place of new weights; what makes the network must not have changed.""",
    ),
    Parameter(
        "sparsity",
        None,
        "Sparsity or None",
        """
        How the network becomes sparse while it learns: `MagnitudePruning` zeroes weights of LSTM layers.""",
    ),
    Parameter(
        "early_stopping",
        False,
        "bool",
        """
        Whether to stop when validation_score does not improve for `patience` epochs, and to keep the best weights.""",
    ),
    Parameter(
        "validation_fraction",
        0.1,
        "float",
        """
        Share of the text, its end, held out for early stopping, in (0, 1); not used if `fit` is given `validation`.""",
    ),
    Parameter(
        "scoring",
        None,
        "callable or None",
        """
        What validation_score and early stopping go by: scoring(model, tokens), larger is better; None for `score`.""",
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


class LanguageModel(Estimator):
    __doc__ = f"""Predicts the next word of a text: an embedding, LSTM layers, and a linear layer over the vocabulary.

    Trained by truncated back-propagation through time: the text is cut into `batch_size` pieces, which are read side by side,
    `steps` words at a time, and states are carried over. Dropout acts where Zaremba et al. 2014 have it ("Recurrent neural
    network regularization"): on the outputs of the embedding and of each LSTM layer ("tdp": on the tiles of each LSTM layer's
    W_ih and of the last layer's weight). Clipping is near theirs, too: their 5.0 is for a loss that is summed over 35 time
    steps, which for the mean is 0.14. So is their step size 1.0, then 35, with which smaller texts are learned less surely.

    {documented(PARAMETERS.values())}

    Attributes
    ----------
    vocabulary_ : Vocabulary
    model_ : Sequential
        Embedding, LSTM layers, Linear.
    history_ : list of dict
        One record an epoch: epoch, loss, score (the share of words that were predicted), perplexity, tokens_per_second,
        seconds, flops_share, learning_rate, dropout_rate, with sparse gate gradients gates_kept and gates_cosine
        (`GateSparsity.report`), and, where there is validation text, validation_loss (its mean cross-entropy),
        validation_score (minus that, unless there is `scoring`) and validation_perplexity.
    n_iter_ : int
        Epochs trained.
    best_epoch_ : int or None
        The epoch with the best validation_score, with early stopping the one whose weights stayed; None without validation.
    policy_ : Dropout
        The policy that trained.

    Examples
    --------
    >>> from numbanet import LanguageModel
    >>> words = "the cat sat on the mat and the dog sat on the rug".split() * 40
    >>> model = LanguageModel((16,), epochs=5, batch_size=4, steps=8, random_state=0).fit(words)
    >>> bool(model.perplexity(words) < 3)
    True
    """

    flags = (*Estimator.flags, "tied")
    rates = MappingProxyType({"sgd": 5.0, "adam": 0.003})
    __init__ = storing(PARAMETERS)

    # --- training -----------------------------------------------------------------------------------------------------
    @whole
    def fit(
        self,
        tokens: Iterable[Any],
        *,
        validation: Iterable[Any] | None = None,
        dropout: str | Dropout | None = None,
        dropout_rate: Rate | None = None,
    ) -> LanguageModel:
        """Train on a text from new weights, or with `warm_start` from those that are there.

        Ctrl-C ends training, keeps what was learned and raises, as for `Net`; `partial_fit` goes on.

        Parameters
        ----------
        tokens : list of str, or integers (T,)
            The text: words, characters, or whatever comes one after the other.
        validation : the same, optional
            Another text, whose loss and perplexity are taken after every epoch.
        dropout, dropout_rate : optional
            Replace the model's own for this call.

        Raises
        ------
        ValueError
            If the text is too short for one step, has integers outside the vocabulary, or a parameter is unfit; the model is
            then as it was before.
        TypeError
            If the text is no list of words or integers.
        FloatingPointError
            If the loss is not finite in the first epoch; the model is then as it was before.
        KeyboardInterrupt
            If it is interrupted.
        """
        settings = self._settings(dropout, dropout_rate)
        trained = bool(self.warm_start) and self._goes_on("warm_start")
        symbols = self._symbols(tokens, new=not trained)
        self._start(settings, self.model_ if trained else None)
        train(*self._prepare(symbols, settings, settings.epochs, trained, validation))
        return self

    @whole
    def partial_fit(
        self, tokens: Iterable[Any], *, dropout: str | Dropout | None = None, dropout_rate: Rate | None = None
    ) -> LanguageModel:
        """One pass over a text, going on from the present weights and optimiser state, from an empty memory; parameters and
        errors as for `fit`.

        The first call, where nothing was trained, takes the vocabulary from its text. What later texts have besides is the
        unknown word.
        """
        settings = dataclasses.replace(self._settings(dropout, dropout_rate), patience=None)
        trained = self._goes_on("partial_fit")
        symbols = self._symbols(tokens, new=not trained)
        if trained:
            self._warn_of_sparsity()
        else:
            self._start(settings)
        train(*self._prepare(symbols, settings, 1, trained))
        return self

    # --- answers ------------------------------------------------------------------------------------------------------
    @deferred
    def perplexity(self, tokens: Iterable[Any]) -> float:
        """exp of the mean cross-entropy of a text: of how many words, equally probable, the model would have to guess.

        The text is read as in training, in `batch_size` pieces (in fewer where it is short), each from an empty memory.
        """
        return math.exp(-self.score(tokens))

    @deferred
    def score(self, tokens: Iterable[Any]) -> float:
        """Minus the mean cross-entropy of a text, which is -log(perplexity): larger is better, 0 is best."""
        check_is_fitted(self, "model_")
        symbols = self._encoded("text", tokens)
        stepper = Stepper(
            self.model_,
            self.optimizer_,
            policy("none"),
            self._task(),
            self._streams,
            self._device(),
            self.batch_size,
            self._session_options(),
        )
        return stepper.task.validate(stepper, Data(symbols, symbols))[1]

    @deferred
    def predict_proba(self, prompt: Iterable[Any]) -> np.ndarray:
        """The probability of each word to come after a prompt, (words,) float32, in the order of the vocabulary."""
        check_is_fitted(self, "model_")
        return device("cpu").softmax(self._read(self._encoded("prompt", prompt, 1), {})[None])[0]

    @deferred
    def predict_next(self, prompt: Iterable[Any], n: int = 1) -> list[Any]:
        """The n most probable words after a prompt, the most probable first."""
        check_is_fitted(self, "model_")
        n = check_count("n", n, len(self.vocabulary_))
        logits = self._read(self._encoded("prompt", prompt, 1), {})
        return self.vocabulary_.decode(np.argsort(-logits, kind="stable")[:n])

    @deferred
    def generate(
        self,
        prompt: Iterable[Any],
        n: int = 20,
        temperature: float = 1.0,
        random_state: int | np.random.RandomState | None = None,
    ) -> list[Any]:
        """n words that follow a prompt, each drawn by its probability.

        Parameters
        ----------
        prompt : list of str, or integers
            At least one word.
        n : int, default=20
        temperature : float, default=1.0
            Logits are divided by it: below 1 the probable words are drawn more often, at 0 always the most probable one. The
            unknown word is never drawn.
        random_state : int, RandomState or None

        Raises
        ------
        ValueError
            If n or the temperature is out of range, or the prompt is empty.
        """
        check_is_fitted(self, "model_")
        n = check_count("n", n)
        if not is_real(temperature) or not 0 <= temperature < math.inf:
            raise ValueError(f"temperature must be a number from 0 on, got {temperature!r}")
        rng, found = check_random_state(random_state), []
        memory: dict[Any, Any] = {}
        given = self._encoded("prompt", prompt, 1)
        for _ in range(n):
            logits = self._read(given, memory)
            if self.vocabulary_.unknown is not None and logits.size > 1:
                logits[self.vocabulary_.encode([self.vocabulary_.unknown])] = -np.inf
            if temperature:
                shares = np.exp((logits - logits.max()).astype(np.float64) / temperature)
                chosen = rng.choice(logits.size, p=shares / shares.sum())
            else:
                chosen = np.argmax(logits)
            found.append(int(chosen))
            deferred.poll()
            given = np.array([chosen], np.int32)
        return self.vocabulary_.decode(found)

    # --- checking -----------------------------------------------------------------------------------------------------
    def _settings(self, dropout, dropout_rate):
        for name in ("hidden", "embedding", "steps", "vocabulary_size"):
            value = getattr(self, name)
            for size in value if isinstance(value, Sequence) and name == "hidden" and len(value) else (value,):
                if not (size is None and name in ("embedding", "vocabulary_size")):
                    check_count(name, size)
        if self.recurrent_sampling not in ("sequence", "step"):
            raise ValueError(f"recurrent_sampling must be 'sequence' or 'step', got {self.recurrent_sampling!r}")
        if self.tied and self.embedding not in (None, self._hidden()[-1]):
            raise ValueError(f"tied: embedding must be the width of the last layer, {self._hidden()[-1]}, got {self.embedding}")
        settings, gates = super()._settings(dropout, dropout_rate), self.gate_sparsity
        policies = [settings.policy]
        if not isinstance(gates, GateSparsity):
            gates = GateSparsity(gates, self.gate_mode, self.gate_schedule)
        back = policy(self.recurrent_dropout, self.recurrent_dropout_rate)
        if back.name != "none":
            policies.append(recurrent(back, self.steps if self.recurrent_sampling == "step" else None))
        if gates.sparsity:
            policies.append(gates.over(self.epochs))
        return dataclasses.replace(settings, policy=Together(*policies)) if len(policies) > 1 else settings

    def _policy(self, dropout, dropout_rate):
        named = isinstance(self.dropout if dropout is None else dropout, str)
        chosen = super()._policy(dropout, dropout_rate)
        if named and isinstance(chosen, (RowDropout, TileDropout)):
            chosen = type(chosen)(chosen.rate, scale="pattern")
        if isinstance(chosen, TileDropout):
            chosen = chosen.changed(answer=True)  # it thins out what leaves the last LSTM layer, as rdp does
        return chosen

    def _scorer(self):
        if self.scoring is not None and not callable(self.scoring):
            raise ValueError(f"scoring must be None or a function scoring(model, tokens), got {self.scoring!r}")
        return self.scoring

    def _hidden(self) -> tuple[int, ...]:
        return (int(self.hidden),) if isinstance(self.hidden, (int, np.integer)) else tuple(self.hidden)

    def _places(self, chosen):
        # no layer here lets a policy choose
        return (len(self._hidden()) + 1) * (chosen.kind != "patches" and not chosen.data_dependent)

    def _encoded(self, name: str, tokens: Iterable[Any], least: int = 2) -> np.ndarray:
        """Symbols of a text; errors that name it."""
        try:
            return self.vocabulary_.encode(checked_tokens(tokens, least))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from error

    def _symbols(self, tokens: Iterable[Any], new: bool) -> np.ndarray:
        """Symbols of a text to train on, of a new vocabulary or of the one that is there."""
        text = checked_tokens(tokens, least=self.batch_size + 1)
        if new:
            self.vocabulary_ = Vocabulary.of(text, self.vocabulary_size, self.unknown)
        return self.vocabulary_.encode(text)

    def _task(self):
        return LanguageModelling(self.steps)

    def _architecture(self):
        return {
            "hidden": self._hidden(),
            **{name: getattr(self, name) for name in ("embedding", "tied", "vocabulary_size", "unknown")},
        }

    def _sample(self):
        return (1,)  # a word

    # --- building -----------------------------------------------------------------------------------------------------
    def _start(self, settings: FitSettings, model: Sequential | None = None) -> None:
        """Begin with a new model, unless one is given."""
        fresh, self._streams = model is None, self._new_streams()
        self._adopt(self._layers() if model is None else model, settings, (self.steps, self.batch_size), fresh)
        if self.recurrent_sampling != "sequence" and policy(self.recurrent_dropout).name == "none":
            warn(
                f"recurrent_sampling={self.recurrent_sampling!r} draws nothing where recurrent_dropout is 'none': choose 'rdp'"
            )

    def _prepare(
        self, symbols: np.ndarray, settings: FitSettings, epochs: int, trained: bool, validation: Iterable[Any] | None = None
    ) -> tuple[Run, Data]:
        """What `train` takes."""
        run, watched = self._run(settings, epochs, trained), None
        if validation is not None:
            validation = validation if isinstance(validation, (Sequence, np.ndarray)) else list(validation)
            watched = self._watched(self._encoded("validation", validation), validation, settings)
        elif settings.patience:
            kept = len(symbols) - max(2, round(self.validation_fraction * len(symbols)))
            if kept <= self.batch_size:
                raise ValueError(
                    f"early_stopping: a text of {len(symbols)} tokens cannot be split with validation_fraction="
                    f"{self.validation_fraction}: batch_size={self.batch_size} needs {self.batch_size + 1}"
                )
            symbols, held = symbols[:kept], symbols[kept:]
            watched = self._watched(held, self.vocabulary_.decode(held), settings)
        data = Data(symbols, symbols)
        self._hook(run, settings, data, watched)
        return run, data

    def _watched(self, symbols: np.ndarray, tokens: Any, settings: FitSettings) -> Validation:
        """Validation by a text, which a scorer takes as it was given."""
        scorer = settings.scorer
        return Validation(Data(symbols, symbols), None if scorer is None else lambda: scorer(self, tokens))

    def _layers(self) -> Sequential:
        """New layers, their weights as in Zaremba et al.: uniform, small."""
        hidden, rng, words = self._hidden(), self._streams.weights, len(self.vocabulary_)
        width = hidden[-1] if self.tied else self.embedding or hidden[0]
        first, last = Embedding(words, width, rng=rng), Linear(hidden[-1], words, init="glorot", rng=rng)
        first.weight.assign(rng.uniform(-0.1, 0.1, (words, width)).astype(np.float32))
        if self.tied:
            last.weight = first.weight
        alike = len(set(hidden)) == 1
        cells = (
            [LSTM(width, hidden[0], len(hidden), rng=rng)]
            if alike
            else [LSTM(inputs, outputs, rng=rng) for inputs, outputs in zip((width, *hidden), hidden)]
        )
        return Sequential([first, *cells, last])

    def _device(self):
        return next(self.model_.parameters()).device

    def _read(self, symbols: np.ndarray, state: dict) -> np.ndarray:
        """Logits (V,) after some symbols; what the layers end with overwrites the state that is given."""
        dev = self._device()
        with no_grad(), dev.session(**self._session_options()):
            for start in range(0, len(symbols), self.steps):
                some = symbols[start : start + self.steps, None]
                flow = Flow(Tensor.wrap(dev.upload(some), dev), Symbols(some))
                output = self.model_.forward(flow, Context(dev, state=state)).dense()
        return np.array(output.numpy()[-1, 0])
