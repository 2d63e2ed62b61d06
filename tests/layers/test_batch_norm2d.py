"""BatchNorm2d: equal to PyTorch's; running values of dropped channels stay."""

import numpy as np
import pytest

from numbanet import BatchNorm2d, Context, Flow, IndexPlan, Tensor
from numbanet.layers import ChannelsLast
from numbanet.plans import on_device
from tests.layers.test_pooling import passes

torch = pytest.importorskip("torch", reason="PyTorch is the oracle (extra `test`)")


def close(ours, theirs, tolerance=1e-5):
    np.testing.assert_allclose(np.asarray(ours), np.asarray(theirs), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("momentum", [0.1, None])
@pytest.mark.parametrize("shape", [(4, 3, 5, 2), (2, 7, 1, 1), (1, 3, 4, 5)], ids=str)
def test_batch_norm_equals_pytorchs(dev, rng, shape, momentum):
    theirs, ours = torch.nn.BatchNorm2d(shape[1], momentum=momentum), BatchNorm2d(shape[1], momentum=momentum, device=dev)
    with torch.no_grad():
        for tensor in (theirs.weight, theirs.bias):
            tensor.copy_(torch.from_numpy(rng.uniform(0.5, 2, shape[1])))
    ours.load_state_dict(theirs.state_dict())
    for training in (True, True, False):
        theirs.train(training)
        theirs.zero_grad()
        for parameter in ours.parameters():
            parameter.zero_grad()
        host = np.float32(rng.normal(3, 2, shape))
        found = passes(ours, theirs, host, dev, Context(dev, training=training))
        for mine, other in (
            *zip(*found),
            (ours.weight.grad.numpy(), theirs.weight.grad),
            (ours.bias.grad.numpy(), theirs.bias.grad),
        ):
            close(mine, other, 1e-4)
    for name, value in theirs.state_dict().items():
        close(ours.state_dict()[name], value)


def test_running_values_of_dropped_channels_stay(dev, rng):
    layer, plan = BatchNorm2d(4, device=dev), IndexPlan(4, [0, 3])
    host = np.float32(rng.normal(2, 3, (3, 2, 2, 2)))
    layer.forward(Flow(Tensor(host, dev), ChannelsLast(on_device(plan, dev))), Context(dev, training=True))
    close(layer.running_mean.numpy()[[0, 3]], 0.1 * host.mean((0, 1, 2)))
    close(layer.running_var.numpy()[[0, 3]], 0.9 + 0.1 * host.var((0, 1, 2), ddof=1))
    np.testing.assert_array_equal([layer.running_mean.numpy()[1:3], layer.running_var.numpy()[1:3]], [[0, 0], [1, 1]])
