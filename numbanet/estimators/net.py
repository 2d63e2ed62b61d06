"""Net, NetRegressor: neural networks as scikit-learn estimators.

net = Net((2048, 2048), dropout="rdp", dropout_rate=0.7, epochs=20).fit(X, y)
net.predict(X); net.predict_proba(X); net.score(X, y); net.history_
"""

from __future__ import annotations

from types import MappingProxyType

import numpy as np
from scipy.sparse import issparse
from scipy.special import log_expit, log_softmax
from sklearn.base import ClassifierMixin, RegressorMixin
from sklearn.utils import column_or_1d
from sklearn.utils.multiclass import check_classification_targets, type_of_target, unique_labels

from ..device import device
from ..dropout import Dropout, Rate
from ..layers import Sequential
from ..losses import OF_CLASSES, OF_NUMBERS, CrossEntropy
from ..training.loop import train
from ..training.task import Classification, Labelling, Regression, StepClassification
from ..user_warnings import warn
from . import steps
from .classes import OUTPUT_BIAS, check_class_weight, check_classes, check_output_bias, class_factors, prior
from .inputs import check_targets, indicators
from .joint import mean, union
from .parameters import SHARED, Parameter, by_name, changed, documented, storing
from .supervised import Supervised
from .whole import whole

CLASSIFIER = {
    **SHARED,
    **by_name(
        OUTPUT_BIAS,
        Parameter(
            "loss",
            "cross_entropy",
            '{"cross_entropy"}, Loss or callable',
            """
        The loss to minimise, for example `CrossEntropy(label_smoothing=0.1)`, or a function loss(output, target) of tensors,
        outputs (N, classes) and class indices (N,) int32, that returns the samples' losses (N,) or their mean. `predict_proba`
        is softmax(output), unless a `Loss` has another `inverse_link`.""",
        ),
        Parameter(
            "class_weight",
            None,
            'dict, "balanced" or None',
            """
        Weight of each class, by which the weights of its samples are multiplied; "balanced", in `fit`, gives all classes the
        same total weight. None: 1 for each class.""",
        ),
    ),
}
REGRESSOR = {
    **changed(SHARED, optimizer="adam", output_init="small"),
    **by_name(
        SHARED["learning_rate"]._replace(
            text="""
        Step size. None: 0.005 for SGD with momentum and for user-defined optimisers, 0.001 for Adam."""
        ),
        Parameter(
            "loss",
            "squared_error",
            '{"squared_error", "absolute_error", "huber", "quantile"}, Loss or callable',
            """
        The loss to minimise: with "squared_error" predictions are means, with "absolute_error" medians, with "huber" in between
        (`Huber(delta)`, delta in standard deviations of y), with "quantile" a quantile (`Quantile(level)`). Or a function
        loss(output, target) of tensors, both (N, outputs), that returns the samples' losses (N,) or their mean; a `Loss` may
        have an `inverse_link` from outputs to predictions, such as the exponential.""",
        ),
    ),
}


class Net(ClassifierMixin, Supervised):
    __doc__ = f"""A neural network classifier, trained with dropout that saves time.

    {documented(CLASSIFIER.values())}

    Attributes
    ----------
    classes_ : ndarray of shape (n_classes,)
        The labels, sorted. If a sample may have several labels, the numbers 0, 1, … of the columns of y.
    loss_ : Loss
        The loss used in training.
    n_features_in_ : int
    model_ : Sequential
        The trained layers.
    history_ : list of dict
        One record per epoch, with the keys epoch, loss (by default cross-entropy; for several labels the sum over labels),
        score (of the predictions made during training), seconds, flops_share (FLOPs divided by those of dense training of the
        initial network), learning_rate and dropout_rate (the mean over layers). "rsdp" and "bsdp" add dropped and sensitive
        (shares for each convolution). With validation there are validation_loss and validation_score (accuracy, or the value of
        `scoring`). `GroupLasso` adds weights_kept (the share of nonzero weights), sparsity_loss and time_loss. The latter two
        are the parts of its penalty without the adaptive weights of norms; their sum plus loss is the fused loss. (With the
        default adaptive=True, training minimises the penalty of weighted norms.) `Rewire` adds rewired (the share of entries
        that it moved). Hooks may add more.
    n_iter_ : int
        Number of epochs trained.
    best_epoch_ : int or None
        The epoch with the best validation_score, whose weights early stopping keeps; None without validation, as after
        `partial_fit`.
    policy_ : Dropout
        The policy that trained, including thresholds that it derived from the data (`SensitiveDropout`).

    Examples
    --------
    >>> from numbanet import Net
    >>> from numbanet.datasets import load_digits
    >>> X_train, y_train, X_test, y_test = load_digits()
    >>> net = Net((64,), dropout="rdp", random_state=0).fit(X_train, y_train)
    >>> bool(net.score(X_test, y_test) > 0.9)
    True
    """

    losses = OF_CLASSES
    _several = False  # True if a sample may have several labels
    rates = MappingProxyType({"sgd": 0.02, "adam": 0.001})
    __init__ = storing(CLASSIFIER)

    @whole
    def partial_fit(
        self, X, y, classes=None, sample_weight=None, *, dropout: str | Dropout | None = None, dropout_rate: Rate | None = None
    ):
        """Train for one epoch, from the current weights and the current state of the optimiser. Changed parameters of the
        optimiser, and a changed loss, hold from now on, as in `NetRegressor.partial_fit`.

        Parameters
        ----------
        X, y, sample_weight, dropout, dropout_rate
            As for `fit`.
        classes : array_like, optional
            All labels that will ever occur; required in the first call unless y contains them all.

        Raises
        ------
        ValueError
            As for `fit`; if y has a label that is not among the classes, or `class_weight` is "balanced".
        """
        train(*self._continued(X, y, sample_weight, dropout, dropout_rate, classes=check_classes(classes)))
        return self

    def score(self, X, y, sample_weight=None) -> float:
        """Return the accuracy. If there are labels for each time step, it is that of all time steps of all sequences, without
        padding. If a sample may have several labels, it is the share of samples of which all labels are predicted correctly.
        """
        if not self._by_step:
            return super().score(X, y, sample_weight)
        X, y = self._checked(X, y)
        y, counted = steps.labels(X, y), steps.counted(X, self.model_)
        weights = None if sample_weight is None else np.broadcast_to(np.reshape(sample_weight, (-1, 1)), y.shape)[counted]
        return float(np.average((y == self.predict(X))[counted], weights=weights))

    def predict_proba(self, X) -> np.ndarray:
        """Return class probabilities (n_samples, n_classes), float32, with columns in the order of `classes_`. If a sample may
        have several labels, return the probability of each label. If there are labels for each time step, the shape is
        (n_samples, n_steps, n_classes).
        """
        self._check_fitted()
        task = self._task()
        return task.probabilities(device("cpu"), self._output(X)) if task.link is None else self._output(X, task.link)

    def predict_log_proba(self, X) -> np.ndarray:
        """Return log(predict_proba(X)), float32, in the same shape; it is finite even if the probability underflows."""
        output = self._output(X)
        if self._several:
            return log_expit(output)
        linked = self._task().linked(device("cpu"), output)
        return log_softmax(output, axis=-1) if linked is None else np.log(linked)

    def predict(self, X) -> np.ndarray:
        """Return the most probable label of each sample (n_samples,). If there are labels for each time step, the shape is
        (n_samples, n_steps), and values after the end of a sequence are meaningless. If a sample may have several labels, the
        result (n_samples, n_classes) is 1 for labels with a probability above 1/2, else 0."""
        output = self._output(X)
        return (output > 0).astype(np.int64) if self._several else self.classes_[self._task().answer(device("cpu"), output)]

    # --- for the base class -------------------------------------------------------------------------------------------
    def _settings(self, dropout, dropout_rate, samples=None):
        check_output_bias(self.output_bias)
        check_class_weight(self.class_weight)
        return super()._settings(dropout, dropout_rate, samples)

    def _check_target(self, X, y, weights, reset, classes=None):
        """Return the labels as indices into `classes_`, int32, and the sample weights times the class weights."""
        if reset:
            self._by_step = self._given_layers() and steps.given(self.layers, X, y, self._batch(len(X)))
        if self._by_step:
            return self._check_steps(X, y, weights, reset, classes)
        if reset or y.ndim > 1:  # later, other labels are unknown ones
            check_classification_targets(y)
        several = y.ndim > 1 and type_of_target(y) == "multilabel-indicator"
        if reset:
            self._several = several
        elif several != self._several:
            raise ValueError(f"y has {'several labels' if several else 'one label'} per sample, unlike in the first call")
        if several:
            if self._criterion() != CrossEntropy():
                raise ValueError(
                    f"loss: {self.loss!r} is for one label per sample; for several labels only cross-entropy is supported: "
                    "leave loss='cross_entropy'"
                )
            return self._indicated(y, reset, classes), self._unweighted(weights)
        if y.ndim > 1:
            raise ValueError(
                f"y has shape {y.shape} and more than two values: give one label per sample, or 0 and 1 for each label"
            )
        index = self._positions(y, reset, classes)
        return index, self._weighted(index, weights)

    def _check_steps(self, X, y, weights, reset, classes):
        """Do the same as `_check_target` for labels (n, T) and weights (n, T) per time step; padding has weight 0."""
        y, counted = steps.labels(X, y), steps.counted(X, Sequential(self.layers) if reset else self.model_)
        check_classification_targets(y[counted])
        self._several = False
        labels = self._positions(y[counted], reset, classes)
        index = np.full(y.shape, labels[0])
        index[counted] = labels
        if weights is not None or not counted.all():
            weights = counted * (np.ones(len(y), np.float32) if weights is None else weights)[:, None]
        weights = self._weighted(index.reshape(-1), None if weights is None else weights.reshape(-1))
        return index, None if weights is None else weights.reshape(index.shape)

    def _positions(self, y, reset, classes):
        """Return labels (n,) as indices into `classes_`, int32."""
        if classes is not None and not reset and not np.array_equal(np.unique(classes), self.classes_):
            raise ValueError(
                f"partial_fit: classes={np.unique(classes).tolist()} differ from those of the first call, "
                f"{self.classes_.tolist()}"
            )
        if reset:
            self.classes_ = np.unique(classes) if classes is not None else union(unique_labels(y))
        if len(self.classes_) < 2:
            raise ValueError(f"Classifier can't train when only one class is present: {self.classes_.tolist()[0]!r}")
        index = np.minimum(np.searchsorted(self.classes_, y), len(self.classes_) - 1)
        unseen = np.unique(y[self.classes_[index] != y])
        if unseen.size:
            raise ValueError(
                f"y has labels that are not among the classes {self.classes_.tolist()}: {unseen.tolist()}; "
                "fit on samples of all classes, without warm_start, or name them in the first "
                "partial_fit(X, y, classes=...)"
            )
        return index.astype(np.int32)

    def _check_same(self, y):
        missing = [] if self._several else np.setdiff1d(np.arange(len(self.classes_)), y)
        if len(missing):
            raise ValueError(
                f"warm_start: y must contain all classes of the previous fit, {self.classes_.tolist()}; "
                f"{self.classes_[missing].tolist()} are missing; fit without warm_start, or continue with partial_fit"
            )

    def _checked(self, X, *y, reset=False, **options):
        checked = super()._checked(X, *y, reset=reset, **options)
        if not y:
            return checked
        X, y = checked
        y = y.toarray() if issparse(y) else y
        return X, column_or_1d(y, warn=True) if y.ndim == 2 and y.shape[1] == 1 else y

    def _indicated(self, y, reset, classes):
        """Return an array (n, labels), float32, that is 1 if the sample has the label, else 0."""
        y = indicators(y)
        if reset:
            self.classes_ = np.arange(y.shape[1])
            if len(y) > 1 and classes is None and (y.sum(1) == 1).all():
                warn(
                    "y has exactly one 1 in each row: its columns are learned as labels of which a sample may have several; if "
                    "y is one-hot, give y.argmax(axis=1), one class for each sample"
                )
        if y.shape[1] != len(self.classes_) or (classes is not None and len(classes) != len(self.classes_)):
            raise ValueError(f"y has {y.shape[1]} labels, but {len(self.classes_)} are known, classes={classes!r}")
        return y

    def _unweighted(self, weights):
        if self.class_weight is not None:
            raise ValueError("class_weight is for samples with one class each; for several labels use sample_weight")
        return weights

    def _task(self):
        return Labelling() if self._several else (StepClassification if self._by_step else Classification)(self._loss())

    def _y_options(self):
        return {"multi_output": True}

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags

    def _weighted(self, y, weights):
        """Return the sample weights times the class weights."""
        if self.class_weight is None:
            return weights
        weights = np.ones(len(y), np.float32) if weights is None else weights
        return (weights * class_factors(self.class_weight, self.classes_, y, weights)[y]).astype(np.float32)

    def _output_bias(self, y, weights):
        loss = self._criterion()
        if self.output_bias is None or type(loss) is not CrossEntropy:
            return None
        return prior(y, weights, len(self.classes_), loss.label_smoothing)

    def _as_given(self, y):
        return y.astype(np.int64) if self._several else self.classes_[y]

    def _outputs(self) -> int:
        return len(self.classes_)

    def _strata(self, y):
        """Return the classes for a stratified split. If a class cannot be in both parts, warn and return None."""
        alone = [] if y.ndim > 1 else np.flatnonzero(np.bincount(y) == 1)
        if len(alone):
            warn(
                f"early_stopping: class {self.classes_[alone[0]]} has only one distinct sample, so samples are held out "
                "without stratification; give it more samples, or fit with validation"
            )
        return None if y.ndim > 1 or len(alone) else y


class NetRegressor(RegressorMixin, Supervised):
    __doc__ = f"""A neural network regressor, for least squares and other losses, trained with dropout that saves time.

    Targets are standardised for training, and predictions are scaled back, so that learning rates do not depend on the unit of
    y. The mean and the scale are those of the first call of `fit` or `partial_fit`. For user-defined losses, targets are not
    standardised.

    {documented(REGRESSOR.values())}

    Attributes
    ----------
    loss_ : Loss
        The loss used in training.
    n_features_in_ : int
    n_outputs_ : int
    model_ : Sequential
        The trained layers; they predict (y - target_mean_) / target_scale_.
    target_mean_, target_scale_ : ndarray of shape (n_outputs_,)
        Mean and standard deviation of y; 0 and 1 if it was not standardised.
    history_ : list of dict
        One record per epoch, as for `Net`; the scores are 1 - loss / (loss of the best constant): R² for the squared error and
        for user-defined losses.
    n_iter_ : int
        Number of epochs trained.
    best_epoch_ : int or None
        As for `Net`.
    policy_ : Dropout
        The policy that trained, including thresholds that it derived from the data (`SensitiveDropout`).
    """

    losses = OF_NUMBERS
    rates = MappingProxyType({"sgd": 0.005, "adam": 0.001})
    __init__ = storing(REGRESSOR)
    least_to_score = 2  # R² is undefined for one sample

    def predict(self, X) -> np.ndarray:
        """Return the predicted values (n_samples,), or (n_samples, n_outputs) if y had several columns. As in scikit-learn
        they are float32 if X is, else float64; float64 also if float32 has steps above 1 % of the spread of y near its mean."""
        values = self._as_given(self._task().answer(device("cpu"), self._output(X)))
        fine = (np.spacing(np.abs(self.target_mean_).astype(np.float32)) <= 0.01 * self.target_scale_).all()
        return values.astype(np.float32) if fine and str(getattr(X, "dtype", "")).endswith("float32") else values

    def __sklearn_tags__(self):
        tags = super().__sklearn_tags__()
        tags.target_tags.multi_output = True
        return tags

    # --- for the base class -------------------------------------------------------------------------------------------
    def _task(self):
        return Regression(self._loss())

    def _y_options(self):
        return {"multi_output": True, "y_numeric": True}

    def _check_target(self, X, y, weights, reset):
        """Return the standardised targets (n, outputs), float32, and the weights of the samples."""
        flat, y = y.ndim == 1, np.asarray(y, np.float64).reshape(len(y), -1)
        check_targets(y, spread=reset and self._criterion().standardised)
        if reset:
            self._flat_target, self.n_outputs_ = flat, y.shape[1]
            self.target_mean_, self.target_scale_ = np.zeros(y.shape[1]), np.ones(y.shape[1])
            if self._criterion().standardised:
                self.target_mean_ = mean(y, weights)
                spread = np.sqrt(mean((y - self.target_mean_) ** 2, weights))
                self.target_scale_ = np.where(spread > 8 * np.finfo(float).eps * np.abs(self.target_mean_), spread, 1.0)
        elif y.shape[1] != self.n_outputs_:
            raise ValueError(f"y has {y.shape[1]} outputs, but the first call had {self.n_outputs_}")
        return ((y - self.target_mean_) / self.target_scale_).astype(np.float32), weights

    def _as_given(self, y):
        values = y * self.target_scale_ + self.target_mean_
        return values.reshape(len(values)) if self._flat_target else values

    def _outputs(self) -> int:
        return self.n_outputs_

    def _strata(self, y):
        return None
