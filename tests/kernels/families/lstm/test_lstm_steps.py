"""The kernels of one time step, also at sizes at which those of all time steps are used: by the tests of `test_lstm`.
And what is recorded of both."""

import numpy as np
import pytest

from numbanet_kernels.families import lstm
from numbanet_kernels.families.lstm import cuda_steps
from numbanet_kernels.runtime import graph, memory
from tests.kernels.families.lstm.test_lstm import case, close, given, test_backward, test_forward

SMALL = cuda_steps.SMALL


@pytest.fixture(autouse=True)
def step_by_step(on_cuda, monkeypatch):
    monkeypatch.setattr(cuda_steps, "SMALL", 0)


@pytest.mark.slow
def test_several_tiles_along_each_axis(suffix, put, get, rng):
    size = 2, cuda_steps.SAMPLES + 2, cuda_steps.COLUMNS + 12
    test_forward(suffix, put, get, rng, size, "units each step")
    test_backward(suffix, put, get, rng, size, "units each step", "columns")
    test_backward(suffix, put, get, rng, size, "both", "all")


@pytest.mark.parametrize("small, launches", [(0, 4 + 5), (SMALL, 2)])
def test_passes_are_recorded(put, get, rng, monkeypatch, small, launches):
    """A launch a time step, and one for h0, or one for all: nothing is read from the device on the way."""
    monkeypatch.setattr(cuda_steps, "SMALL", small)
    (z, w, *states), options = case(rng, 4, 5, 6, "both")
    dy, options = rng.standard_normal((4, 5, 6)).astype(np.float32), given(put, options)
    placed, w, h0, c0, dy = map(put, (np.zeros_like(z), w, *states, dy))

    def passes():
        h, c = lstm.lstm_cuda(placed, w, h0, c0, **options)
        return h, lstm.lstm_grad_cuda(dy, placed, c, w, **options)

    passes()
    recorded = graph.record_cuda(passes)
    names = [kernel.__name__ for kernel, *_ in recorded._calls]
    assert sum("step" in name or "sequence" in name for name in names) == launches
    for turn in range(2):
        memory.copy_cuda(z + turn, out=placed)
        recorded.replay()
        found = [get(a) for a in (recorded.result[0], *recorded.result[1])]
        memory.copy_cuda(z + turn, out=placed)
        h, grads = passes()
        for ours, theirs in zip(found, (h, *grads), strict=True):
            np.testing.assert_array_equal(ours, get(theirs))


@pytest.mark.parametrize("small", [0, SMALL])
@pytest.mark.parametrize("steps, n", [(0, 3), (2, 0)])
def test_nothing_to_do(put, get, monkeypatch, small, steps, n):
    """No time step: states and their gradients pass. No sample: nothing."""
    monkeypatch.setattr(cuda_steps, "SMALL", small)
    z, dy, w, state = (put(np.ones(shape)) for shape in ((steps, n, 16), (steps, n, 4), (16, 4), (n, 4)))
    h, c = lstm.lstm_cuda(z, w, state, state)
    dz, dh0, dc0 = lstm.lstm_grad_cuda(dy, z, c, w, dc=state)
    assert h.shape == c.shape == (steps + 1, n, 4) and dz.shape == z.shape
    close(get(h[0]), np.ones((n, 4)))
    close(get(dh0), np.zeros((n, 4)))
    close(get(dc0), np.ones((n, 4)))
    close(get(lstm.lstm_scores_cuda(dy, z, c)), np.zeros(16))
