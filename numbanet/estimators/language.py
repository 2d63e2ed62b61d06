"""LanguageModel: the next word of a text, learned by an LSTM with dropout that saves time.

    model = LanguageModel((650, 650), dropout="rdp").fit(words)
    model.perplexity(other_words); model.generate(["the"], 20)
"""
from __future__ import annotations

import copy
import math
import numbers
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from numbanet_kernels.runtime.interrupt import deferred

from ..autograd import no_grad
from ..dropout import Dropout, GateSparsity, Rate, RowDropout, TileDropout, Together, policy, recurrent
from ..layers import LSTM, Context, Embedding, Flow, Linear, Sequential, Symbols, to
from ..tensor import Tensor
from ..training.data import Data
from ..training.loop import train
from ..training.streams import Streams
from ..training.task import LanguageModelling
from ..training.trainer import Trainer
from ..training.warned import warn
from .base import BaseNet
from .parameters import PARAMETERS, SHARED, storing
from .vocabulary import Vocabulary, checked_tokens
from .whole import whole

LEFT_OUT = ("activation", "warm_start", "sparsity", "augment", "image_shape", "early_stopping", "validation_fraction",
            "patience")
OWN = {"steps": 35, "embedding": None, "vocabulary_size": None, "unknown": "<unk>", "tied": False, "recurrent_dropout": "none",
       "recurrent_dropout_rate": 0.25, "recurrent_sampling": "sequence", "gate_sparsity": 0.0,
       "gate_mode": "columns", "gate_schedule": 0.8}
CHANGED = {"batch_size": 20, "learning_rate": 5.0, "momentum": 0.0, "clip_norm": 0.25}


def _described(*names: str) -> str:
    """The paragraphs of the shared parameters that these estimators have, too."""
    parts, kept = PARAMETERS.strip("\n").split("\n    ")[2:], []
    for line in parts:
        if not line.startswith(" "):
            keep = line.split(" ")[0].rstrip(",") in names
        if keep:
            kept.append(line)
    return "\n    ".join(kept)


class LanguageModel(BaseNet):
    __doc__ = f"""Predicts the next word of a text: an embedding, LSTM layers, and a linear layer over the vocabulary.

    Trained by truncated back-propagation through time: the text is cut into `batch_size` pieces, which are read side by side,
    `steps` words at a time, and states are carried over. Dropout acts where Zaremba et al. 2014 have it ("Recurrent neural
    network regularization"): on the outputs of the embedding and of each LSTM layer ("tdp": on the tiles of each LSTM layer's
    W_ih and of the last layer's weight). Clipping is near theirs, too: their 5.0 is for a loss that is summed over 35 time
    steps, which for the mean is 0.14. So is their step size 1.0, then 35, with which smaller texts are learned less surely.

    Parameters
    ----------
    hidden : int or tuple of int, default=(650, 650)
        Widths of the LSTM layers.
    steps : int, default=35
        Words that gradients flow back through.
    embedding : int or None, default=None
        Length of a word's vector; None for the width of the first layer.
    vocabulary_size : int or None, default=None
        So many words at most, the most frequent ones; all others are `unknown`. None for all words of the text. Where the text
        is integers, how many there are.
    unknown : str, default="<unk>"
        The word for words that are not in the vocabulary.
    tied : bool, default=False
        Whether the last layer's weight is the embedding's (Press & Wolf 2017); `embedding` is then the last layer's width.
    recurrent_dropout : {{"none", "rdp", "batchwise"}} or Dropout, default="none"
        What of h[t-1] the product with W_hh does not see (`LSTM`), the same for all samples of a batch.
    recurrent_dropout_rate : float, default=0.25
        Its rate, unless it is a policy object.
    recurrent_sampling : {{"sequence", "step"}}, default="sequence"
        Whether what is dropped is the same for all time steps of a batch, which saves most, or drawn at each ("rdp" alone).
    gate_sparsity : float or GateSparsity, default=0.0
        Share of the gate gradients that backward passes leave out; or a policy object, which brings its own mode and schedule.
    gate_mode, gate_schedule
        How, and in which steps: by "columns", in the first 0.8 of them by default (`GateSparsity`).
    dropout : {{"none", "bernoulli", "rdp", "tdp", "batchwise"}} or Dropout, default="none"
        What is dropped in each training step (`numbanet.dropout`); a policy object brings its own rate. "rdp" and "tdp" by
        name have scale="pattern", so that a step's logits are as large as without dropout, whatever it keeps.
    dropout_rate : float, callable, or sequence of these, default=0.5
        Probability to drop, in [0, 1): one, or one for the embedding and each LSTM layer; or a function of the epoch.
    learning_rate : float, default=5.0
        Step size: for SGD without momentum and with clipping, which bounds how far a step goes. Small enough that what is
        learned in the first epoch hardly depends on the seed; the recorded runs (`lstm-rates`) end lower than those with 20 in
        the mean, on a small text after the default epochs and on a larger one after four. There 10, or 20 with clip_norm=0.1,
        learn sooner.
    momentum : float, default=0.0
        Of SGD, in [0, 1).
    clip_norm : float or None, default=0.25
        Largest norm of all gradients as one vector: larger ones are scaled down to it.
    batch_size : int, default=20
        Pieces of the text that are read side by side.
    {_described("optimizer", "nesterov", "weight_decay", "schedule", "epochs", "callbacks", "device", "precision", "n_jobs",
                "random_state", "verbose")}

    Attributes
    ----------
    vocabulary_ : Vocabulary
    model_ : Sequential
        Embedding, LSTM layers, Linear.
    history_ : list of dict
        One record an epoch: epoch, loss, score (the share of words that were predicted), perplexity, tokens_per_second,
        seconds, flops_share, learning_rate, dropout_rate, with sparse gate gradients gates_kept and gates_cosine
        (`GateSparsity.report`), and, where there is validation text, validation_score (minus its mean cross-entropy) and
        validation_perplexity.
    n_iter_ : int
        Epochs trained.

    Examples
    --------
    >>> from numbanet import LanguageModel
    >>> words = "the cat sat on the mat and the dog sat on the rug".split() * 40
    >>> model = LanguageModel((16,), epochs=5, batch_size=4, steps=8, random_state=0).fit(words)
    >>> bool(model.perplexity(words) < 3)
    True
    """

    __init__ = storing({**{k: v for k, v in SHARED.items() if k not in LEFT_OUT}, **OWN, **CHANGED}, "hidden", (650, 650))
    activation, warm_start, sparsity, augment, image_shape, early_stopping, validation_fraction, patience = (
        SHARED[name] for name in LEFT_OUT)

    # --- public -------------------------------------------------------------------------------------------------------
    @whole
    def fit(self, tokens: Iterable[Any], *, validation: Iterable[Any] | None = None, dropout: str | Dropout | None = None,
            dropout_rate: Rate | None = None) -> LanguageModel:
        """Train on a text from new weights. Ctrl-C ends training, keeps what was learned and raises, as for `Net`.

        Parameters
        ----------
        tokens : list of str, or integers (T,)
            The text: words, characters, or whatever comes one after the other.
        validation : the same, optional
            Another text, whose perplexity is taken after every epoch.
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
        text = checked_tokens(tokens, least=self.batch_size + 1)
        self.vocabulary_ = Vocabulary.of(text, self.vocabulary_size, self.unknown)
        symbols = self.vocabulary_.encode(text)
        held = None if validation is None else self._encoded("validation", validation)
        self._streams = Streams.from_seed(check_random_state(self.random_state).randint(2**31))
        self.model_, self.history_ = self._layers(), []
        to(self.model_, settings["device"])
        self.optimizer_ = self._new_optimizer(self.model_)
        if self.recurrent_sampling != "sequence" and policy(self.recurrent_dropout).name == "none":
            warn(f"recurrent_sampling={self.recurrent_sampling!r} draws nothing where recurrent_dropout is 'none': choose "
                 "'rdp'")
        self._thinning, data = None, Data(symbols, symbols)
        self._undo.forget()
        run = self._new_run(self._trainer(settings["policy"]), self.epochs)
        run.add(*self._hooks(data, None if held is None else Data(held, held), settings, run))
        train(run, data)
        return self

    @deferred
    def perplexity(self, tokens: Iterable[Any]) -> float:
        """exp of the mean cross-entropy of a text: of how many words, equally probable, the model would have to guess.

        The text is read as in training, in `batch_size` pieces (in fewer where it is short), each from an empty memory.
        """
        check_is_fitted(self, "model_")
        symbols, trainer = self._encoded("text", tokens), self._trainer(policy("none"))
        return math.exp(trainer.task.validate(trainer, Data(symbols, symbols))[0])

    @deferred
    def predict_next(self, prompt: Iterable[Any], n: int = 1) -> list[Any]:
        """The n most probable words after a prompt, the most probable first."""
        check_is_fitted(self, "model_")
        n = _count("n", n, len(self.vocabulary_))
        logits = self._read(self._encoded("prompt", prompt, 1), {})
        return self.vocabulary_.decode(np.argsort(-logits, kind="stable")[:n])

    @deferred
    def generate(self, prompt: Iterable[Any], n: int = 20, temperature: float = 1.0,
                 random_state: int | np.random.RandomState | None = None) -> list[Any]:
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
        n = _count("n", n)
        if isinstance(temperature, bool) or not isinstance(temperature, numbers.Real) or not 0 <= temperature < math.inf:
            raise ValueError(f"temperature must be a number from 0 on, got {temperature!r}")
        rng, memory, found = check_random_state(random_state), {}, []
        given = self._encoded("prompt", prompt, 1)
        for _ in range(n):
            logits = self._read(given, memory)
            if self.vocabulary_.unknown is not None and logits.size > 1:
                logits[self.vocabulary_.encode([self.vocabulary_.unknown])] = -np.inf
            if temperature:
                shares = np.exp(np.float64(logits - logits.max()) / temperature)
                chosen = rng.choice(logits.size, p=shares / shares.sum())
            else:
                chosen = np.argmax(logits)
            found.append(int(chosen))
            deferred.poll()
            given = np.array([chosen], np.int32)
        return self.vocabulary_.decode(found)

    # --- checking and building ----------------------------------------------------------------------------------------
    def _settings(self, dropout, dropout_rate):
        for name in ("hidden", "embedding", "steps", "vocabulary_size"):
            value = getattr(self, name)
            for size in value if isinstance(value, Sequence) and name == "hidden" and len(value) else (value,):
                if not (size is None and name in ("embedding", "vocabulary_size")):
                    _count(name, size)
        if not isinstance(self.tied, (bool, np.bool_)):
            raise ValueError(f"tied must be True or False, got {self.tied!r}")
        settings = super()._settings(dropout, dropout_rate)
        chosen = copy.copy(settings["policy"])
        if isinstance(chosen, TileDropout):
            chosen.answer = True  # it thins out what leaves the last LSTM layer, as rdp does
        if isinstance(self.dropout if dropout is None else dropout, str) and isinstance(chosen, (RowDropout, TileDropout)):
            chosen.scale = "pattern"
        back = policy(self.recurrent_dropout, self.recurrent_dropout_rate)
        if self.recurrent_sampling not in ("sequence", "step"):
            raise ValueError(f"recurrent_sampling must be 'sequence' or 'step', got {self.recurrent_sampling!r}")
        steps = self.steps if self.recurrent_sampling == "step" else None
        gates = self.gate_sparsity
        if not isinstance(gates, GateSparsity):
            gates = GateSparsity(gates, self.gate_mode, self.gate_schedule)
        policies = [chosen, *([] if back.name == "none" else [recurrent(back, steps)]),
                    *([gates.over(self.epochs)] if gates.sparsity else [])]
        settings["policy"] = Together(*policies) if len(policies) > 1 else chosen
        if self.tied and self.embedding not in (None, self._hidden()[-1]):
            raise ValueError(f"tied: embedding must be the width of the last layer, {self._hidden()[-1]}, got {self.embedding}")
        return settings

    def _hidden(self) -> tuple[int, ...]:
        return (self.hidden,) if isinstance(self.hidden, numbers.Integral) else tuple(self.hidden)

    def _places(self, chosen):
        return (len(self._hidden()) + 1) * (chosen.kind != "patches" and not chosen.looks)  # no layer here lets a policy look

    def _encoded(self, name: str, tokens: Iterable[Any], least: int = 2) -> np.ndarray:
        """Symbols of a text; errors that name it."""
        try:
            return self.vocabulary_.encode(checked_tokens(tokens, least))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {error}") from error

    def _layers(self) -> Sequential:
        """New layers, their weights as in Zaremba et al.: uniform, small."""
        hidden, rng, words = self._hidden(), self._streams.weights, len(self.vocabulary_)
        width = hidden[-1] if self.tied else self.embedding or hidden[0]
        first, last = Embedding(words, width, rng=rng), Linear(hidden[-1], words, init="glorot", rng=rng)
        first.weight = Tensor(rng.uniform(-0.1, 0.1, (words, width)), requires_grad=True)
        if self.tied:
            last.weight = first.weight
        alike = len(set(hidden)) == 1
        cells = [LSTM(width, hidden[0], len(hidden), rng=rng)] if alike else [
            LSTM(inputs, outputs, rng=rng) for inputs, outputs in zip((width, *hidden), hidden)]
        return Sequential([first, *cells, last])

    def _trainer(self, chosen: Dropout) -> Trainer:
        return Trainer(self.model_, self.optimizer_, chosen, LanguageModelling(self.steps), self._streams, self._device(),
                       self.batch_size, self._session_options())

    def _device(self):
        return next(self.model_.parameters()).device

    def _read(self, symbols: np.ndarray, state: dict) -> np.ndarray:
        """Logits (V,) after some symbols; what the layers end with overwrites the state that is given."""
        dev = self._device()
        with no_grad(), dev.session(**self._session_options()):
            for start in range(0, len(symbols), self.steps):
                some = symbols[start:start + self.steps, None]
                flow = Flow(Tensor.wrap(dev.upload(some), dev), Symbols(some))
                output = self.model_.forward(flow, Context(dev, state=state)).dense()
        return np.array(output.numpy()[-1, 0])


def _count(name: str, value: Any, most: int | None = None) -> int:
    """A positive integer, or ValueError."""
    if isinstance(value, bool) or not isinstance(value, numbers.Integral) or value < 1 or (most is not None and value > most):
        raise ValueError(f"{name} must be a positive integer{'' if most is None else f' of at most {most}'}, got {value!r}")
    return int(value)
