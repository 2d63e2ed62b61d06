"""LeNet-5, AlexNet and VGG19: shapes, PyTorch's names and values, and `Net` by their names, of images flat or not."""

import pickle

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from numbanet import (
    BatchNorm2d,
    Conv2d,
    Flatten,
    Linear,
    MaxPool2d,
    Net,
    NetRegressor,
    Plans,
    ReLU,
    Sequential,
    Tensor,
    alexnet,
    lenet5,
    vgg19,
)
from numbanet.layers import ActivationSpec

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")

SHAPES = [(1, 28, 28), (3, 32, 32)]
# convolutions, linear layers, pixels of a channel that the first linear layer sees, for images of 28 x 28 and of 32 x 32
MODELS = {"lenet5": (lenet5, 2, 3, (25, 36)), "alexnet": (alexnet, 5, 3, (9, 16)), "vgg19": (vgg19, 16, 1, (1, 1))}


def theirs(layer):
    """PyTorch's layer of the same name and sizes."""
    if isinstance(layer, Conv2d):
        return torch.nn.Conv2d(layer.in_channels, layer.out_channels, *layer.window, layer.groups, layer.bias is not None)
    if isinstance(layer, Linear):
        return torch.nn.Linear(*layer.weight.shape[::-1])
    return {
        BatchNorm2d: lambda: torch.nn.BatchNorm2d(layer.num_features),
        ReLU: torch.nn.ReLU,
        Flatten: torch.nn.Flatten,
        MaxPool2d: lambda: torch.nn.MaxPool2d(2),
    }[type(layer)]()


@pytest.mark.slow
@pytest.mark.parametrize("batch_norm", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_networks_are_pytorchs_of_the_same_layers(name, shape, batch_norm):
    """By names, shapes and order of the parameters, and by the output for a state of PyTorch's."""
    make, convolutions, linear, pixels = MODELS[name]
    model = Sequential(make(shape, classes=7, batch_norm=batch_norm, rng=0))
    kinds = [type(layer) for layer in model.layers]
    assert (kinds.count(Conv2d), kinds.count(Linear), kinds.count(BatchNorm2d)) == (
        convolutions,
        linear,
        convolutions * batch_norm,
    )
    cost, form = model.cost(ActivationSpec((2, *shape)), Plans())
    assert form.shape == (2, 7) and cost.flops > 0
    last = next(layer for layer in reversed(model.layers) if isinstance(layer, Conv2d))
    first = next(layer for layer in model.layers if isinstance(layer, Linear))
    assert first.weight.shape[1] == last.out_channels * pixels[SHAPES.index(shape)]
    other = torch.nn.Sequential(*map(theirs, model.layers)).eval()
    assert [(key, value.shape) for key, value in model.state_dict().items()] == [
        (key, tuple(value.shape)) for key, value in other.state_dict().items()
    ]
    model.load_state_dict(other.state_dict())
    x = np.float32(np.random.default_rng(1).standard_normal((2, *shape)))
    with torch.no_grad():
        np.testing.assert_allclose(model(Tensor(x)).numpy(), other(torch.from_numpy(x)), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_a_seed_gives_the_weights(name):
    make = MODELS[name][0]
    first, again, other = (Sequential(make((3, 12, 12), rng=seed)).state_dict() for seed in (0, 0, 1))
    assert all(np.array_equal(first[key], again[key]) for key in first)
    assert not np.array_equal(first["0.weight"], other["0.weight"])


@pytest.mark.parametrize(
    "name, shape", [("lenet5", (1, 12, 13)), ("alexnet", (3, 8, 9)), ("vgg19", (3, 8, 8)), ("vgg19", (2, 40, 9))]
)
def test_the_smallest_images_and_others(name, shape):
    model = Sequential(MODELS[name][0](shape, classes=3, rng=0))
    assert model.cost(ActivationSpec((5, *shape)), Plans())[1].shape == (5, 3)
    assert model(Tensor(np.ones((1, *shape)))).shape == (1, 3)


@pytest.mark.parametrize(
    "name, shape, message",
    [
        ("lenet5", (1, 11, 28), r"lenet5: image_shape must be \(C, H, W\) with H and W of at least 12, got \(1, 11, 28\)"),
        ("alexnet", (3, 32, 7), "alexnet: .* at least 8"),
        ("vgg19", (3, 7, 32), "vgg19: .* at least 8"),
        ("lenet5", (28, 28), "lenet5: .* got"),
        ("alexnet", (0, 32, 32), "alexnet"),
        ("vgg19", (3, 32.0, 32), "vgg19"),
        ("lenet5", 28, "lenet5: .* got 28"),
    ],
)
def test_images_that_do_not_fit_are_refused(name, shape, message):
    with pytest.raises(ValueError, match=message):
        MODELS[name][0](shape)


# --- Net --------------------------------------------------------------------------------------------------------------
def digits(n=60, side=12, channels=1):
    """Images with a bright quarter, which tells the class."""
    rng, y = np.random.default_rng(0), np.arange(n) % 4
    X = np.float32(0.3 * rng.standard_normal((n, channels, side, side)))
    for i, label in enumerate(y):
        X[i, :, label // 2 * side // 2 : (label // 2 + 1) * side // 2, label % 2 * side // 2 : (label % 2 + 1) * side // 2] += 1
    return X, y


def net(layers="lenet5", **options):
    return Net(layers, **{"epochs": 2, "batch_size": 20, "random_state": 0, **options})


@pytest.mark.parametrize("name", MODELS)
def test_net_by_name(name):
    X, y = digits(24, channels=3)
    fitted = net(name, epochs=1).fit(X, y)
    assert fitted.predict_proba(X).shape == (24, 4) and fitted.input_shape_ == (3, 12, 12)
    assert [type(layer) for layer in fitted.model_.layers] == [type(layer) for layer in MODELS[name][0]((3, 12, 12), 4)]


def test_it_learns_and_flat_images_train_alike():
    X, y = digits()
    first, flat = (
        net(epochs=15, **options).fit(given, y)
        for given, options in ((X, {}), (X.reshape(len(X), -1), {"image_shape": (1, 12, 12)}))
    )
    assert first.score(X, y) > 0.9
    np.testing.assert_array_equal(first.predict_proba(X), flat.predict_proba(X.reshape(len(X), -1)))
    again = pickle.loads(pickle.dumps(flat))
    np.testing.assert_array_equal(again.predict_proba(X.reshape(len(X), -1)), first.predict_proba(X))


def test_parameters_are_scikit_learns():
    given = net(image_shape=(1, 12, 12), dropout="rsdp", dropout_rate=0.4)
    assert given.get_params()["image_shape"] == (1, 12, 12) and given.get_params()["layers"] == "lenet5"
    assert clone(given).get_params() == given.get_params()
    assert given.set_params(image_shape=(1, 14, 14)).image_shape == (1, 14, 14)


@pytest.mark.parametrize("dropout", ["none", "rdp", "rsdp", "bsdp"])
def test_pipelines_and_searches(dropout):
    X, y = digits(n=44)
    pipeline = make_pipeline(StandardScaler(), net(image_shape=(1, 12, 12), dropout=dropout, dropout_rate=0.3))
    flat = X.reshape(len(X), -1)
    assert pipeline.fit(flat, y).predict(flat).shape == (44,)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(pipeline)).predict(flat), pipeline.predict(flat))
    if dropout == "rsdp":
        search = GridSearchCV(clone(pipeline), {"net__dropout_rate": [0.2, 0.6]}, cv=2, error_score="raise").fit(flat, y)
        assert search.best_params_["net__dropout_rate"] in (0.2, 0.6)


def test_partial_fit_goes_on():
    X, y = digits(n=24)
    one = net(dropout="rsdp").partial_fit(X, y, classes=[0, 1, 2, 3]).partial_fit(X, y)
    assert one.n_iter_ == 2 and [record["epoch"] for record in one.history_] == [1, 2]


def test_a_regressor_takes_images_too():
    X, y = digits(n=24)
    assert NetRegressor("lenet5", epochs=1, random_state=0).fit(X, y * 1.0).predict(X).shape == (24,)


def convolution(*arguments, **options):
    return [Conv2d(*arguments, **options), ReLU(), Flatten(), Linear(4, 4)]


@pytest.mark.parametrize(
    "layers, options, shape, message",
    [
        ("lenet5", {}, (144,), r"lenet5 takes images .* of shape \(144,\); for flat samples set image_shape"),
        ("lenet5", {}, (1, 11, 12), "lenet5: image_shape"),
        (
            "lenet5",
            {"image_shape": (1, 12, 11)},
            (144,),
            r"image_shape must be .* with 144 values, as X has, got \(1, 12, 11\)",
        ),
        ("lenet5", {"image_shape": (12, 12)}, (144,), "image_shape must be"),
        ("lenet5", {"image_shape": 144}, (144,), "image_shape must be .* got 144"),
        ("lenet", {}, (1, 12, 12), "there is no network 'lenet'; choose 'lenet5', 'alexnet', 'vgg19'"),
        ("lenet5", {"dropout": "rsdp", "dropout_rate": (0.1, 0.2, 0.3)}, (1, 12, 12), "3 entries for 2"),
        (convolution(1, 4, 13), {}, (1, 12, 12), r"Conv2d\(1, 4, 13\): its window is larger than the images \(12, 12\)"),
        (convolution(3, 4, 3), {}, (1, 12, 12), r"Conv2d\(3, 4, 3\): it takes images \(3, H, W\).*\(1, 12, 12\) a sample"),
        (convolution(1, 4, 3), {}, (144,), r"Conv2d\(1, 4, 3\): it takes images .*image_shape=\(1, H, W\)$"),
        (convolution(3, 4, 3), {}, (12, 12, 3), r"Conv2d\(3, 4, 3\): .*; channels come first: X.transpose\(0, 3, 1, 2\)$"),
        (convolution(1, 4, 3), {}, (1, 12, 12), r"Linear\(4, 4\): it takes 4 features, and its input has \(400,\)"),
        ([Conv2d(1, 4, 12), MaxPool2d(2), Flatten(), Linear(4, 4)], {}, (1, 12, 12), r"MaxPool2d.*1 x 1 pixels"),
        (
            [Conv2d(1, 4, 3), BatchNorm2d(5), Flatten(), Linear(4, 4)],
            {},
            (1, 12, 12),
            r"BatchNorm2d\(5\): its input is of shape",
        ),
        ([Conv2d(1, 4, 3)], {}, (1, 12, 12), "the last one must give 4 outputs"),
        (Sequential([Flatten(), Linear(144, 4)]), {}, (1, 12, 12), r"layers must be .*, give its attribute layers; got Seq"),
    ],
)
def test_what_does_not_fit_is_refused_before_training(layers, options, shape, message):
    called = []
    given = net(layers, callbacks=[lambda net, record: called.append(record)], **options)
    X, y = np.zeros((24, *shape), np.float32), np.arange(24) % 4
    with pytest.raises(ValueError, match=message):
        given.fit(X, y)
    assert not called and not hasattr(given, "model_")


def test_images_of_another_shape_are_refused_by_a_fitted_net():
    X, y = digits(n=24)
    fitted = net(epochs=1).fit(X, y)
    for shape in ((1, 12, 13), (2, 12, 12), (144,)):
        with pytest.raises(ValueError, match=r"expect|features|shape"):
            fitted.predict(np.ones((3, *shape), np.float32))
