"""Recorded launches are done again, in their order and only then, on what their arrays hold by then."""

import numpy as np
import pytest

from numbanet_kernels.families import elementwise, indexing
from numbanet_kernels.runtime import arrays, availability, emulation, graph, launch, memory, pool

DEVICES = [
    *(["cuda"] if availability.cuda_problem() is None else []),
    *(["emulated"] if availability.nvvm_problem() is None else []),
]


@pytest.fixture(autouse=True, params=DEVICES)
def where(request):
    with emulation.emulated(request.param == "emulated"):
        yield


def test_a_graph_computes_with_what_its_arrays_hold(rng):
    x, rows = arrays.to_device(np.zeros((4, 3), np.float32)), arrays.to_device(np.array([2, 2, 0], np.int32))

    def work():
        return elementwise.relu_cuda(indexing.take_rows_cuda(x, rows))

    work()
    recorded = graph.record_cuda(work)
    recorded.replay()
    assert not recorded.result.copy_to_host().any()
    for _ in range(2):
        values = rng.standard_normal((4, 3)).astype(np.float32)
        memory.copy_cuda(values, out=x)
        recorded.replay()
        np.testing.assert_array_equal(recorded.result.copy_to_host(), np.maximum(values[[2, 2, 0]], 0))


def test_nothing_is_launched_while_recording():
    x = arrays.to_device(np.zeros(3, np.float32))
    graph.record_cuda(lambda: memory.full_cuda((3,), 1.0, out=x))
    assert not x.copy_to_host().any()


REFUSED = {
    "upload": lambda: memory.upload_cuda(np.ones(2)),
    "to_device": lambda: arrays.to_device(np.ones(2)),
    "download": lambda: memory.download_cuda(arrays.device_array(2)),
}


@pytest.mark.parametrize("work", REFUSED.values(), ids=REFUSED)
def test_what_is_no_launch_is_refused_while_recording(work):
    work()
    with pytest.raises(launch.NotRecorded, match="cannot be recorded"):
        graph.Graph(work, pool.Arena(1 << 20))
    assert graph.record_cuda(work) is None
    work()  # and only then


def test_what_is_checked_on_a_card_holds_here():
    assert graph._available.check() == 0
