"""All checks of scikit-learn, which hold for Net and NetRegressor."""

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from numbanet import Net, NetRegressor


def checks():
    """All of scikit-learn's checks but one that runs only where SciPy was imported with SCIPY_ARRAY_API=1, and one of a method,
    decision_function, that MLPClassifier has not either."""
    pairs = [pair for estimator in (Net(), NetRegressor()) for pair in estimator_checks_generator(estimator)]
    names = [getattr(check, "func", check).__name__ for _, check in pairs]
    return [
        pytest.param(*pair, id=f"{type(pair[0]).__name__}-{name}")
        for pair, name in zip(pairs, names)
        if name not in ("check_array_api_input", "check_classifiers_multilabel_output_format_decision_function")
    ]


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator, check", checks())
def test_scikit_learn_check(estimator, check):
    check(estimator)
