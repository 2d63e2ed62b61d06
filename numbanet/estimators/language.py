"""`LanguageModel`: an LSTM that predicts the next word of a text, and is trained with dropout that saves time.

model = LanguageModel((650, 650), dropout="rdp").fit(words)
model.perplexity(other_words); model.generate(["the"], 20)
"""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Iterable, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from numbanet_kernels.runtime.interrupt import deferred

from ..arguments import check_count, check_takes, is_real
from ..autograd import no_grad
from ..device import device
from ..dropout import Dropout, GateSparsity, Rate, RowDropout, TileDropout, Together, policy, recurrent
from ..layers import LSTM, Context, Embedding, Flow, Linear, Sequential, Symbols
from ..tensor import Tensor
from ..training.data import Data
from ..training.loop import train
from ..training.run import Run
from ..training.stepper import Stepper
from ..training.task import LanguageModelling, perplexity
from ..training.validation import Validation
from ..user_warnings import warn
from .base import Estimator
from .joint import text_of_all
from .language_parameters import DROPOUTS, PARAMETERS, lstm_widths, recurrent_policy
from .parameters import documented, storing
from .settings import FitSettings
from .vocabulary import Vocabulary, checked_tokens
from .whole import whole


class LanguageModel(Estimator):
    __doc__ = f"""Predicts the next word of a text: an embedding, LSTM layers, and a linear layer over the vocabulary.

    The model is trained by truncated back-propagation through time: the text is cut into `batch_size` segments, which are read
    in parallel, `steps` words at a time. The final LSTM states of a step are the initial states of the next step. Dropout acts
    as in Zaremba et al. 2014 ("Recurrent neural network regularization"), on the outputs of the embedding and of each LSTM
    layer; "tdp" acts on the tiles of the W_ih of each LSTM layer and of the weight of the last layer. The paper clips gradients
    to a norm of 5.0 for a loss summed over 35 time steps, which is 0.14 for the mean; the default here is similar. The paper's
    step size of 1.0 would be 35 here; with it, training on smaller texts is less reliable.

    {documented(PARAMETERS.values())}

    Attributes
    ----------
    vocabulary_ : Vocabulary
    model_ : Sequential
        Embedding, LSTM layers, Linear.
    history_ : list of dict
        One record per epoch, with the keys epoch, loss, score (the share of words predicted correctly), perplexity,
        tokens_per_second, seconds, flops_share, learning_rate and dropout_rate. With sparse gate gradients it also has
        gates_kept and gates_cosine (`GateSparsity.report`). With a validation text it also has validation_loss (its mean
        cross-entropy), validation_score (the negative validation_loss, unless `scoring` is set) and validation_perplexity.
    n_iter_ : int
        Number of epochs trained.
    best_epoch_ : int or None
        The epoch with the best validation_score, whose weights early stopping keeps; None without validation, as after
        `partial_fit`.
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
    kinds = tuple(DROPOUTS)
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
        checkpoint: str | os.PathLike | None = None,
        every: str | int | None = None,
        keep: int | None = None,
    ) -> LanguageModel:
        """Train on a text, from new weights; if `warm_start` is True, from the existing weights.

        Ctrl-C ends training: the model keeps the complete epochs, and KeyboardInterrupt is raised, as by `Net`. `partial_fit`
        then continues the training.

        Parameters
        ----------
        tokens : list of str, or integers (T,)
            The text: words, characters, or any other tokens.
        validation : the same, optional
            Another text, whose loss and perplexity are computed after every epoch.
        dropout, dropout_rate : optional
            If given, they replace the parameters of the model in this call.
        checkpoint, every, keep : optional
            As for `Net`: a folder for checkpoints, how often they are written, and how many are kept.

        Raises
        ------
        ValueError
            If the text is too short for one step, has integers outside the vocabulary, or a parameter is invalid; the model is
            unchanged.
        TypeError
            If the text is not a list of words or integers.
        FloatingPointError
            If the loss is not finite in the first epoch; the model is unchanged.
        KeyboardInterrupt
            If training is interrupted.
        """
        saver = self._saver(checkpoint, every, keep, dropout=dropout, dropout_rate=dropout_rate)
        arguments = saver.arguments if saver else {"dropout": dropout, "dropout_rate": dropout_rate}
        settings, going = self._settings(arguments.get("dropout"), arguments.get("dropout_rate")), self._unfinished
        trained = going is not None or (bool(self.warm_start) and self._goes_on("warm_start"))
        symbols = self._symbols(tokens, new=not trained)
        if going is not None:
            self._start_again(settings, (self.steps, self.batch_size), None, arguments)
        else:
            self._start(settings, self.model_ if trained else None)
        run, data = self._prepare(symbols, settings, settings.epochs, trained, validation)
        if saver:
            saver.join(run, data)
        train(run, data)
        return self

    @whole
    def partial_fit(
        self, tokens: Iterable[Any], *, dropout: str | Dropout | None = None, dropout_rate: Rate | None = None
    ) -> LanguageModel:
        """Train for one epoch on a text, from the current weights, the current state of the optimiser, and LSTM states of zero.
        Parameters and errors are those of `fit`. If parameters of the optimiser have changed, they hold from now on; its
        state is kept if its class has not changed.

        The first call makes the vocabulary from its text. Words of later texts that are not in the vocabulary become the
        unknown word.
        """
        settings = dataclasses.replace(self._settings(dropout, dropout_rate), patience=None)
        trained = self._goes_on("partial_fit")
        symbols = self._symbols(tokens, new=not trained)
        if trained:
            self._warn_of_sparsity()
            self.optimizer_ = self._renewed(self.optimizer_, self.model_)
        else:
            self._start(settings)
        train(*self._prepare(symbols, settings, 1, trained))
        return self

    # --- answers ------------------------------------------------------------------------------------------------------
    @deferred
    def perplexity(self, tokens: Iterable[Any]) -> float:
        """Return exp(mean cross-entropy) of a text. It is 1 for perfect predictions, and n for a model that gives n words the
        same probability. It is at most exp(700), as in `history_`.

        The text is read as in training, in `batch_size` segments (fewer if it is short), each from states of zero.
        """
        return perplexity(-self.score(tokens))

    @deferred
    def score(self, tokens: Iterable[Any]) -> float:
        """Return the negative mean cross-entropy of a text, which is -log(perplexity). Larger is better, and 0 is best. The
        segments are of equal length (`perplexity`), so up to `batch_size` - 1 words at the end of the text do not count.
        """
        check_is_fitted(self, "model_")
        symbols = self._encoded("text", tokens)
        stepper = Stepper(
            self.model_,
            self.optimizer_,
            policy("none"),
            self._task(),
            self._streams,
            self._device(),
            check_count("batch_size", self.batch_size),
            self._session_options(),
        )
        return stepper.task.validate(stepper, Data(symbols, symbols))[1]

    @deferred
    def predict_proba(self, prompt: Iterable[Any]) -> np.ndarray:
        """Return the probability of each word to follow a prompt, an array (words,), float32, in the vocabulary's order."""
        check_is_fitted(self, "model_")
        return device("cpu").softmax(self._read(self._encoded("prompt", prompt, 1), {})[None])[0]

    @deferred
    def predict_next(self, prompt: Iterable[Any], n: int = 1) -> list[Any]:
        """Return the n most probable words to follow a prompt, the most probable first."""
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
        """Generate n words that follow a prompt, each sampled from its predicted distribution.

        Parameters
        ----------
        prompt : list of str, or integers
            At least one word.
        n : int, default=20
            Number of words to generate.
        temperature : float, default=1.0
            Logits are divided by the temperature. If it is below 1, probable words are sampled more often; if it is 0, the most
            probable word is always chosen. The unknown word is never sampled.
        random_state : int, RandomState or None
            Seed of the sampling.

        Raises
        ------
        ValueError
            If n or the temperature is out of range, or the prompt is empty.
        """
        check_is_fitted(self, "model_")
        n = check_count("n", n)
        if not is_real(temperature) or not 0 <= temperature < math.inf:
            raise ValueError(f"temperature must be a number not below 0, got {temperature!r}")
        rng, symbols = check_random_state(random_state), []
        memory: dict[Any, Any] = {}
        given = self._encoded("prompt", prompt, 1)
        for _ in range(n):
            logits = self._read(given, memory)
            if self.vocabulary_.unknown is not None and logits.size > 1:
                logits[self.vocabulary_.encode([self.vocabulary_.unknown])] = -np.inf
            if temperature:
                with np.errstate(over="ignore"):  # the quotient of a tiny temperature is -inf, and its share 0
                    shares = np.exp((logits - logits.max()).astype(np.float64) / temperature)
                chosen = rng.choice(logits.size, p=shares / shares.sum())
            else:
                chosen = np.argmax(logits)
            symbols.append(int(chosen))
            deferred.poll()
            given = np.array([chosen], np.int32)
        return self.vocabulary_.decode(symbols)

    # --- checking -----------------------------------------------------------------------------------------------------
    def _settings(self, dropout, dropout_rate):
        self._hidden()
        for name in ("embedding", "steps", "vocabulary_size"):
            if not ((size := getattr(self, name)) is None and name in ("embedding", "vocabulary_size")):
                check_count(name, size)
        if self.recurrent_sampling not in ("sequence", "step", "outputs"):
            raise ValueError(f"recurrent_sampling must be 'sequence', 'step' or 'outputs', got {self.recurrent_sampling!r}")
        if self.tied and self.embedding not in (None, self._hidden()[-1]):
            raise ValueError(f"tied: embedding must be the width of the last layer, {self._hidden()[-1]}, got {self.embedding}")
        if not isinstance(self.unknown, str):
            raise TypeError(f"unknown must be a word, got {self.unknown!r}")
        settings, gates = super()._settings(dropout, dropout_rate), self.gate_sparsity
        policies = [settings.policy]
        if not isinstance(gates, GateSparsity):
            gates = GateSparsity(gates, self.gate_mode, self.gate_schedule)
        back = recurrent_policy(self.recurrent_dropout, self.recurrent_dropout_rate, len(self._hidden()), settings.epochs)
        if back.name != "none":
            sampling = self.recurrent_sampling
            policies.append(recurrent(back, self.steps if sampling == "step" else None, sampling == "outputs"))
        if gates.sparsity:
            policies.append(gates)
        if len(policies) == 1:
            return settings
        return dataclasses.replace(settings, policy=Together(*policies).over(self.epochs))

    def _policy(self, dropout, dropout_rate, samples=None):
        named = isinstance(self.dropout if dropout is None else dropout, str)
        chosen = super()._policy(dropout, dropout_rate)
        if named and isinstance(chosen, (RowDropout, TileDropout)):
            chosen = type(chosen)(chosen.rate, scale="pattern")
        if isinstance(chosen, TileDropout):
            # the weight of the last layer gets tiles as well; they drop outputs of the last LSTM layer
            chosen = chosen.changed(answer=True)
        return chosen

    def _scorer(self):
        if self.scoring is not None and not callable(self.scoring):
            raise ValueError(f"scoring must be None or a function scoring(model, tokens), got {self.scoring!r}")
        if callable(self.scoring):
            check_takes("scoring", self.scoring, "two arguments, the model and the tokens", self, ())
        return self.scoring

    def _hidden(self) -> tuple[int, ...]:
        return lstm_widths(self.hidden)

    def _site_count(self, chosen):
        # no layer here lets a policy choose its plan from data
        return (len(self._hidden()) + 1) * (chosen.kind != "patches" and not chosen.data_dependent)

    def _encoded(self, name: str, tokens: Iterable[Any], least: int = 2) -> np.ndarray:
        """Return the symbols of a text of at least `least` tokens; error messages start with `name`."""
        try:
            return self.vocabulary_.encode(checked_tokens(tokens, least))
        except (TypeError, ValueError) as error:
            raise type(error)(f"{name}: {str(error).removeprefix('text: ')}") from error

    def _symbols(self, tokens: Iterable[Any], new: bool) -> np.ndarray:
        """Return the symbols of a training text; if `new`, make the vocabulary from this text."""
        why = f": batch_size={self.batch_size} segments are read in parallel; give a longer text, or a smaller batch_size"
        text = checked_tokens(tokens, self.batch_size + 1, why)
        if new:
            self.vocabulary_ = Vocabulary.of(text_of_all(text), self.vocabulary_size, self.unknown)
        return self.vocabulary_.encode(text)

    def _task(self):
        return LanguageModelling(check_count("steps", self.steps))

    def _architecture(self):
        return {
            "hidden": self._hidden(),
            **{name: getattr(self, name) for name in ("embedding", "tied", "vocabulary_size", "unknown")},
        }

    def _sample(self):
        return (1,)  # one word

    # --- building -----------------------------------------------------------------------------------------------------
    def _start(self, settings: FitSettings, model: Sequential | None = None) -> None:
        """Start with `model`; if it is None, with a new model."""
        fresh, self._streams = model is None, self._new_streams()
        self._adopt(self._layers() if model is None else model, settings, (self.steps, self.batch_size), fresh)
        if self.recurrent_sampling != "sequence" and policy(self.recurrent_dropout).name == "none":
            warn(f"recurrent_sampling={self.recurrent_sampling!r} has no effect if recurrent_dropout is 'none': choose 'rdp'")

    def _prepare(
        self, symbols: np.ndarray, settings: FitSettings, epochs: int, trained: bool, validation: Iterable[Any] | None = None
    ) -> tuple[Run, Data]:
        """Return the run and the data, the arguments of `train`."""
        run, watched = self._run(settings, epochs, trained), None
        if validation is not None:
            validation = validation if isinstance(validation, (Sequence, np.ndarray)) else list(validation)
            watched = self._watched(self._encoded("validation", validation), validation, settings)
        elif settings.patience:
            count = len(symbols) - max(2, round(self.validation_fraction * len(symbols)))
            if count <= self.batch_size:
                raise ValueError(
                    f"early_stopping: a text of {len(symbols)} tokens cannot be split with validation_fraction="
                    f"{self.validation_fraction}: batch_size={self.batch_size} needs {self.batch_size + 1}"
                )
            symbols, held = symbols[:count], symbols[count:]
            watched = self._watched(held, self.vocabulary_.decode(held), settings)
        data = Data(symbols, symbols)
        self._hook(run, settings, data, watched)
        return run, data

    def _watched(self, symbols: np.ndarray, tokens: Any, settings: FitSettings) -> Validation:
        """Return the hook that scores a validation text; if `scoring` is a function, it gets `tokens`, as the user gave it."""
        scorer = settings.scorer
        return Validation(Data(symbols, symbols), None if scorer is None else lambda: scorer(self, tokens))

    def _layers(self) -> Sequential:
        """Return new layers with small, uniformly distributed weights, as in Zaremba et al."""
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
        """Return the logits (V,) after the last of `symbols`; overwrite `state` with the layers' final states."""
        dev = self._device()
        with no_grad(), dev.session(**self._session_options()):
            for start in range(0, len(symbols), check_count("steps", self.steps)):
                some = symbols[start : start + self.steps, None]
                flow = Flow(Tensor.wrap(dev.upload(some), dev), Symbols(some))
                output = self.model_.forward(flow, Context(dev, state=state)).dense()
        return np.array(output.numpy()[-1, 0])
