"""All checks of scikit-learn, which hold for Net and NetRegressor."""

import pytest
from sklearn.utils.estimator_checks import estimator_checks_generator

from numbanet import Net, NetRegressor

LEFT_OUT = "check_array_api_input", "check_classifiers_multilabel_output_format_decision_function"
FEW = 5  # epochs, for what does not ask how well an estimator learns


def checks():
    """All of scikit-learn's checks but one that runs only where SciPy was imported with SCIPY_ARRAY_API=1, and one of a method,
    decision_function, that MLPClassifier has not either. Estimators by default train for many epochs: with all checks, that is
    long.
    """
    for kind in (Net, NetRegressor):
        for estimator in (kind(), kind(epochs=FEW)):
            for _, check in estimator_checks_generator(estimator):
                name, few = getattr(check, "func", check).__name__, estimator.epochs == FEW
                learns = name.endswith("_train")
                if name not in LEFT_OUT and not (few and learns):
                    marks = () if few or learns else pytest.mark.long
                    yield pytest.param(estimator, check, id=f"{kind.__name__}-{name}{'-few' if few else ''}", marks=marks)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("estimator, check", list(checks()))
def test_scikit_learn_check(estimator, check):
    check(estimator)
