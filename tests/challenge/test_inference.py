"""The Challenge: every way gives the categories of a float64 reference, and says what it did."""

import os

import numpy as np
import pytest
import threadpoolctl

from numbanet import cli
from numbanet.challenge import WAYS, ChallengeData, EllLayer, RadixNet, challenge
from numbanet.challenge.inference import _Uploaded
from numbanet.challenge.run import first_inputs
from numbanet.device import device as named, problem

DATA = os.environ.get("NUMBANET_DATA")
OFFICIAL = pytest.mark.skipif(
    not DATA or not os.path.isdir(os.path.join(DATA, "graphchallenge")),
    reason="needs the official files in NUMBANET_DATA/graphchallenge",
)


def data(neurons=64, layers=12, count=300, share=0.25, seed=0):
    """Random images, some of which die; truth by the reference."""
    rng = np.random.default_rng(seed)
    images = rng.random((count, neurons)) < share * rng.random((count, 1)) * 2
    starts = np.concatenate([[0], np.cumsum(images.sum(axis=1))]).astype(np.int32)
    columns = np.nonzero(images)[1].astype(np.int32)
    found = ChallengeData(starts, columns, np.ones(len(columns), np.float32), RadixNet(neurons, layers), None)
    return found._replace(truth=np.flatnonzero(reference(found)[-1]))


def reference(given):
    """Which inputs are not 0, before each layer and after the last one; float64."""
    count, neurons = len(given.starts) - 1, len(given.network[0].indices)
    y = np.zeros((neurons, count))
    y[given.columns, np.repeat(np.arange(count), np.diff(given.starts))] = given.values
    alive = [np.ones(count, bool)]
    for indices, values, bias in given.network:
        y = np.clip(np.einsum("ok,okn->on", np.float64(values), y[indices]) + np.float64(bias)[:, None], 0, 32)
        alive.append(y.any(axis=0))
    return alive


DEVICES = ["cpu", *(["emulated"] if problem("emulated") is None else [])]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("way", WAYS[:-1])
@pytest.mark.parametrize("memory", [None, 2 * 64 * 64 * 4 * 2], ids=["at once", "in pieces"])
def test_every_way_gives_the_same(device, way, memory):
    given = data(count=300 if device == "cpu" else 140, layers=12 if device == "cpu" else 4)
    alive = reference(given)
    with threadpoolctl.threadpool_limits(2, user_api="blas"):
        found = challenge(data=given, way=way, device=device, memory=memory)
    count, connections = len(given.starts) - 1, 64 * 32
    assert found.correct and np.array_equal(found.categories, given.truth) and 0 < len(given.truth) < count
    assert found.pieces == (1 if memory is None else -(-count // 128)) and found.inputs == count and found.way == way
    assert found.connections == len(given.network) * connections and found.rate == count * found.connections / found.seconds
    assert 0 < found.by_layer.sum() <= found.seconds and len(found.by_layer) == len(given.network)
    live = np.array([before.sum() for before in alive[:-1]])
    live[0] = count
    assert found.live.tolist() == live.tolist()
    least, most = live * connections, np.full(len(live), -(-count // 64) * 64 * connections)
    if way == "compact":
        assert found.multiplications.tolist() == least.tolist()
    elif way == "filter":
        assert (least <= found.multiplications).all() and (found.multiplications <= most).all()
        assert device == "cpu" or found.multiplications.tolist() == least.tolist()
    else:
        assert found.multiplications.tolist() == most.tolist()
    assert found.share_done == pytest.approx(found.multiplications.sum() / (count * found.connections))


def test_weights_of_any_value_in_rows_of_any_inputs():
    rng = np.random.default_rng(1)
    network = [
        EllLayer(
            np.sort(np.stack([rng.permutation(20)[:5] for _ in range(20)])).astype(np.int32),
            rng.normal(0.2, 1, (20, 5)).astype(np.float32),
            np.full(20, -0.8, np.float32),
        )
        for _ in range(6)
    ]
    given = data(64, 1, 100)
    columns, at = np.unique(given.columns % 20 + 20 * np.repeat(np.arange(100), np.diff(given.starts)), return_index=True)
    starts = np.searchsorted(columns, 20 * np.arange(101)).astype(np.int32)
    given = ChallengeData(starts, (columns % 20).astype(np.int32), given.values[at], network, None)
    given = given._replace(truth=np.flatnonzero(reference(given)[-1]))
    assert 0 < len(given.truth) < 100 and all(challenge(data=given, way=way).correct for way in WAYS)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("change", [None, "a weak layer", "a cold bias"])
def test_saturated_inputs_end_only_where_they_would_stay(device, change):
    given = data(count=130, layers=8)
    network = [EllLayer(indices, 3 * values, bias) for indices, values, bias in given.network]
    indices, values, bias = network[-1]
    if change == "a weak layer":
        network[-1] = EllLayer(indices, values / 6, bias)
    elif change == "a cold bias":
        network[-1] = EllLayer(indices, values, bias * np.where(np.arange(64) == 9, 9000, 1).astype(np.float32))
    given = given._replace(network=network)
    alive = reference(given)
    found = challenge(data=given._replace(truth=np.flatnonzero(alive[-1])), way="saturated", device=device)
    live = np.array([130, *(before.sum() for before in alive[1:-1])])
    assert found.correct and 0 < live[-1] < 130 and found.live.tolist() == live.tolist()
    ended = int(found.multiplications.argmin()) if change is None else len(network)
    assert 1 < ended and (ended < len(network)) == (change is None)
    assert found.multiplications.tolist() == [*(live[:ended] * 64 * 32), *[0] * (len(network) - ended)]


def test_wrong_categories_are_said_and_inputs_may_be_fewer():
    given = data()
    assert challenge(data=given._replace(truth=given.truth[1:])).correct is False
    assert challenge(data=given._replace(truth=None)).correct is None
    found = challenge(data=given, inputs=70)
    assert found.correct and found.inputs == 70 and np.array_equal(found.categories, given.truth[given.truth < 70])
    assert first_inputs(given, 300) is given


@pytest.mark.parametrize("count", [0, 1])
def test_inputs_that_all_die(count):
    given = data(count=65)
    starts = given.starts * 0
    starts[count:] = count  # one input of one pixel, or none
    found = challenge(data=given._replace(starts=starts, truth=np.zeros(0, int)))
    assert found.correct and len(found.categories) == 0 and found.live[0] == 65 and found.live[-1] == 0


@pytest.mark.parametrize(
    "options, error, message",
    [
        ({"way": "fast"}, ValueError, "unknown way 'fast'; choose from compact"),
        ({"inputs": 0}, ValueError, "inputs must be a positive integer, got 0"),
        ({"inputs": 2.5}, ValueError, "inputs must be a positive integer, got 2.5"),
        ({"inputs": "3"}, ValueError, "inputs must be a positive integer, got '3'"),
        ({"layers": "3"}, ValueError, "layers must be a positive integer, got '3'"),
        ({"memory": "3"}, ValueError, "memory must be a number of bytes, got '3'"),
        ({"data": 5}, TypeError, "data must be a folder, 'generated' or a ChallengeData, not int"),
        ({"data": data(layers=1)._replace(starts=[0, 2.5])}, TypeError, "starts must be integers, not float64"),
        ({"data": data(layers=1)._replace(starts=[0, 2**40])}, ValueError, "starts must be int32 numbers, not 0 to 1099"),
        ({"data": data(layers=1)._replace(starts=[0, 9, 3])}, ValueError, "starts must not decrease"),
        ({"data": data(layers=1)._replace(values=[1.0, 2.0])}, ValueError, "one value for each column, not .* values .2,"),
        ({"data": data(layers=1)._replace(network=None)}, TypeError, "network must be a sequence of EllLayer, not NoneType"),
        ({"data": data()._replace(network=[*RadixNet(64, 1), *RadixNet(32, 1)])}, ValueError, "layer 2 must have 64 neurons"),
        ({"data": data(layers=1)._replace(network=[5])}, TypeError, "layer 1 must be an EllLayer, not int"),
        ({"data": data(layers=1)._replace(network=[([[0]], [[1]], [0, 0])])}, ValueError, "bias of layer 1 must be .* and .2,"),
        (
            {"data": data(layers=1)._replace(network=[EllLayer(np.zeros((4, 0), int), np.zeros((4, 0)), np.zeros(4))])},
            ValueError,
            r"indices of layer 1 \(4, 0\) must have at least one neuron, and one input of each",
        ),
        (
            {"data": data(layers=1)._replace(network=[EllLayer(np.zeros((0, 4), int), np.zeros((0, 4)), np.zeros(0))])},
            ValueError,
            r"indices of layer 1 \(0, 4\) must have",
        ),
        ({"data": data(layers=1)._replace(truth=[2.0])}, TypeError, "truth must hold the indices of inputs, not float64"),
        ({"data": data(layers=1)._replace(truth=[3, 1])}, ValueError, "truth must be increasing indices of .* inputs, from 0"),
        ({"data": data(layers=1)._replace(truth=[10**6])}, ValueError, "truth must be increasing indices"),
        ({"inputs": 0, "data": "generated"}, ValueError, "inputs must be a positive integer, got 0"),
        ({"neurons": 1024}, ValueError, "the data have 64 neurons and 1 layers; neurons 1024 and layers None must match"),
        ({"layers": 120}, ValueError, "the data have 64 neurons and 1 layers"),
        ({"data": data(layers=1)._replace(starts=np.zeros(0, np.int32))}, ValueError, "data must have one input"),
        ({"data": data(layers=1)._replace(network=[])}, ValueError, "one layer at least, not .* 0 layers"),
        ({"memory": -1}, MemoryError, "and may use -1"),
        ({"memory": 1000}, MemoryError, "64 inputs need 32,768 bytes for activations, and may use 1,000"),
        ({"data": "generated", "neurons": 1000}, ValueError, "16 times a power of 2"),
        ({"data": "generated", "neurons": 2048}, ValueError, "a square number of neurons, not 2048"),
        ({"device": "tpu"}, ValueError, "tpu"),
    ],
)
def test_what_may_not_be_is_refused(options, error, message):
    with pytest.raises(error, match=message):
        challenge(**{"data": data(layers=1), **options})


BYTES = 4 * (2 * 64 * 32 + 2 * 64)  # of a layer on a device: indices, values, bias and the order of the rows


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("layers", [0, 1, 3, 12, 99])
def test_as_many_layers_stay_as_all_their_arrays_leave_room_for(device, shared, layers):
    """What layers share counts once. Of the layers that do not stay, the arrays of the last one alone are held."""
    network = [layer if shared else EllLayer(*(part + 0 * part for part in layer)) for layer in RadixNet(64, 12)]
    each = BYTES - 4 * (64 * 32 + 64) * shared
    uploaded = _Uploaded(named(device), network, layers * each + (BYTES - each) * (layers > 0))
    stay = min(max(layers, 1), 12)
    assert len(uploaded.resident) == stay
    for _ in range(2):
        for number, layer in enumerate(network):
            arrays, rows = uploaded[number]
            for found, given in zip(arrays, layer, strict=True):
                np.testing.assert_array_equal(uploaded.dev.download(found), given)
            assert len(rows.order) == 64 and len(uploaded.last) <= 2
            assert len({id(array) for array in arrays[1:]} & {id(array) for array in uploaded[0][0][1:]}) == 2 * (
                shared or number == 0
            )
        assert len(uploaded.kept) == (2 if shared else 2 * stay)


def test_what_layers_that_do_not_stay_share_is_uploaded_once_in_a_row():
    first, *others = RadixNet(64, 4)
    network = [EllLayer(first.indices, first.values + 0, first.bias + 0), *others]
    uploads = []

    class Counted:
        def upload(self, host):
            uploads.append(host)
            return host

    uploaded = _Uploaded(Counted(), network, 0)
    for number in range(4):
        uploaded[number]
    values = [host for host in uploads if host.dtype == np.float32]
    assert len(uploads) == 8 + 4 and [host.shape for host in values] == 2 * [(64, 32), (64,)]


def test_the_memory_that_is_said_counts_values_and_biases_and_what_is_shared_once():
    said, given = [], data(layers=3, count=65)
    wide = [layer._replace(indices=layer.indices.repeat(400, axis=1)) for layer in given.network]
    values = wide[0].values.repeat(400, axis=1)
    for copies in ([values] * 3, [values + 0 for _ in wide]):
        network = [layer._replace(values=own) for layer, own in zip(wide, copies, strict=True)]
        challenge(data=given._replace(network=network, truth=None), say=said.append)
    indices, biases = 3 * values.nbytes, 4 * 64
    for line, size in zip(said, (indices + values.nbytes + biases, indices + 3 * values.nbytes + biases), strict=True):
        assert f"3 layers {size / 1e9:.2f} GB" in line
    assert said[0] != said[1]


@pytest.mark.parametrize("way", WAYS)
def test_a_bias_above_0_is_refused_because_dead_inputs_are_left_out(way):
    first, last = data(layers=2, count=65).network
    given = data(layers=2)._replace(network=[first, last._replace(bias=changed(last.bias, 0.1))])
    with pytest.raises(ValueError, match="the bias of layer 2 must not be above 0, got 0.1.*SparseLinear"):
        challenge(data=given, way=way)


def test_lanes_without_an_input_are_not_counted_and_a_bias_may_be_0():
    given = data(layers=3, count=70)
    given = given._replace(network=[layer._replace(bias=0 * layer.bias) for layer in given.network])
    alive = [70, *(before.sum() for before in reference(given)[1:-1])]
    assert all(challenge(data=given, way=way).live.tolist() == alive for way in WAYS)


def test_lists_and_arrays_of_other_types_are_converted():
    given = data(layers=2, count=70)
    network = [tuple(map(np.ndarray.tolist, layer)) for layer in given.network]
    lists = ChallengeData(*(part.tolist() for part in given[:3]), network, given.truth.tolist())
    wide = ChallengeData(given.starts.astype(np.int64), given.columns.astype(np.uint16), np.float64(given.values), *given[3:])
    for other in (lists, wide):
        found = challenge(data=other, inputs=66)
        assert found.correct and np.array_equal(found.categories, given.truth[given.truth < 66])


def changed(array, value):
    found = array.copy()
    found.flat[-1] = value
    return found


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize(
    "name, value, message",
    [
        ("columns", 9999, "columns must be from 0 to 63, not 0 to 9999"),
        ("columns", -1, "columns .* not -1"),
        ("starts", 10**6, "starts must be from 0 to"),
        ("indices", 64, "indices of layer 2 must be from 0 to 63, not 0 to 64"),
    ],
)
def test_what_is_not_there_is_refused_on_every_device(device, name, value, message):
    given = data(layers=2, count=65)
    if name == "indices":
        first, last = given.network
        given = given._replace(network=[first, last._replace(indices=changed(last.indices, value))])
    else:
        given = given._replace(**{name: changed(getattr(given, name), value)})
    with pytest.raises(ValueError, match=f"challenge: {message}"):
        challenge(data=given, device=device)


@pytest.mark.skipif(not DATA, reason="needs MNIST in NUMBANET_DATA")
def test_a_generated_network(capsys):
    found = challenge(256, 16, "generated", inputs=200)
    assert found.correct is None and found.inputs == 200 and len(found.live) == 16
    other = challenge(256, 16, "generated", inputs=200, way="filter", memory=2**18)
    assert np.array_equal(found.categories, other.categories) and other.pieces == 2
    assert cli.main(["challenge", "--neurons", "256", "--layers", "16", "--data", "generated", "--inputs", "200"]) == 0
    out = capsys.readouterr().out
    assert "200 inputs need 0.00 GB" in out and f"{len(found.categories)} of 200 inputs are not 0" in out
    assert f"{found.share_done:.1%} of these were multiplied" in out and "edges/s as the Challenge counts them" in out


@OFFICIAL
@pytest.mark.slow
def test_the_official_categories(tmp_path, monkeypatch):
    """All 60,000 images through all 120 layers, from the files on."""
    monkeypatch.setattr("numbanet.challenge.files.cache_folder", lambda: tmp_path)
    found = challenge()
    assert found.correct and len(found.categories) == 1812 and found.inputs == 60_000
    assert found.share_done < 0.06 and (np.diff(found.live) <= 0).all()
