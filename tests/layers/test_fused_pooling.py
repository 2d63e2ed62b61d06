"""Conv2d, ReLU and MaxPool2d in a row are computed together, with the results of one after the other."""

import numpy as np
import pytest

from numbanet import (
    AvgPool2d,
    BernoulliPlan,
    BlockPlan,
    Context,
    Conv2d,
    IndexPlan,
    MaxPool2d,
    ReLU,
    RowPlan,
    Sequential,
    Tensor,
    no_grad,
    ops,
)
from numbanet.layers import Flow, Tree
from numbanet_kernels.layouts.windows import Window

ORDER = np.random.default_rng(5).random((2 * 42, 3)).argsort(1)
PLANS = {
    "nothing": {},
    "filters": {"output": RowPlan(4, 2, 1, 1.5)},
    "random": {"output": BernoulliPlan(4, 0.5, 3, 2.0)},
    "positions": {"input": IndexPlan(2 * 42, np.arange(0, 84, 3), 2.0)},
    "blocks": {"input": BlockPlan((2 * 42, 27), 1, 9, np.sort(ORDER[:, :2], 1), 1.25)},
}


def passed(model, host, dev, plans, apart):
    """Output and all gradients; the layers one after the other if `apart`."""
    x = Tensor(host, dev, requires_grad=True)
    owned = {site.name if hasattr(site, "name") else path[1]: site for path, site in Tree(model).sites.items()}
    context = Context(dev, {owned[name]: plan for name, plan in plans.items()}, model=model)
    if apart:
        flow = Flow(x)
        for layer in model.layers:
            flow = layer.forward(flow.before(layer.commutes), context)
        y = flow.dense()
    else:
        y = model(x, context)
    y.backward(np.random.default_rng(2).standard_normal(y.shape).astype(np.float32))
    found = [y.numpy(), x.grad.numpy(), *(p.grad.numpy() for p in model.parameters())]
    for p in model.parameters():
        p.zero_grad()
    return found


@pytest.mark.parametrize("plan", PLANS)
@pytest.mark.parametrize("relu", [False, True])
def test_what_is_fused_equals_layers_apart(dev, rng, plan, relu):
    model = Sequential([Conv2d(3, 4, 3, padding=1, rng=0, device=dev), *[ReLU()] * relu, MaxPool2d(2)])
    assert len(list(model._stages())) == 1
    host = np.float32(rng.standard_normal((2, 3, 6, 7)))
    for fused, apart in zip(*(passed(model, host, dev, PLANS[plan], apart) for apart in (False, True)), strict=True):
        np.testing.assert_allclose(fused, apart, rtol=1e-5, atol=1e-6)


def test_only_a_max_pooling_after_the_convolution_is_fused():
    class Halved(MaxPool2d):
        def pool(self, x):
            return super().pool(x)

        def __call__(self, x):
            return 0.5 * super().__call__(x)

    first = Conv2d(1, 2, 3, rng=0)
    for layers, stages in (
        ([first, ReLU(), MaxPool2d(2), ReLU()], 2),
        ([first, MaxPool2d(2), ReLU()], 2),
        ([first, ReLU(), ReLU(), MaxPool2d(2)], 3),
        ([first, ReLU(), AvgPool2d(2)], 2),
        ([first, ReLU(), Halved(2)], 2),
        ([first, Halved(2)], 2),
        ([ReLU(), MaxPool2d(2)], 2),
        ([first, ReLU(), MaxPool2d(2), MaxPool2d(2)], 2),
    ):
        model, x = Sequential(layers), Tensor(np.random.default_rng(0).standard_normal((2, 1, 9, 9)))
        assert len(list(model._stages())) == stages, layers
        apart = x
        for layer in layers:
            apart = layer(apart)
        np.testing.assert_allclose(model(x).numpy(), apart.numpy(), rtol=1e-6)


def test_a_prediction_keeps_no_places(monkeypatch, rng):
    x, layer, wanted = Tensor(rng.standard_normal((32, 8, 8, 1))), Conv2d(1, 2, 3, rng=0), []
    whole = x.device.conv2d_max_pool

    def noted(*given, wants_places=True, **options):
        wanted.append(wants_places)
        return whole(*given, wants_places=wants_places, **options)

    monkeypatch.setitem(vars(x.device), "conv2d_max_pool", noted)
    for context in (no_grad(), None):
        with context or monkeypatch.context():
            ops.conv2d(x, layer.weight, layer.bias, window=layer.window, pool=Window((2, 2), (2, 2)))
    assert wanted == [False, True]
