"""dsg: which neurons are kept, by which scores, of which samples, and what the choice costs."""

import numpy as np
import pytest

from numbanet import Context, DynamicSparseGraph, IndexPlan, Plans, SamplePlan, Tensor
from numbanet.dropout import guesses
from numbanet.dropout.graph import johnson_lindenstrauss, kept_of
from numbanet.layers import Flow, Tree
from numbanet_kernels.families.projection import project_reference
from numbanet_kernels.layouts.ternary import ternary
from tests.dropout.test_dsg import N, choosing, network, plan_of, samples


@pytest.mark.parametrize("n, epsilon, k", [(2048, 0.5, 365), (10, 0.5, 110), (512, 0.3, 693), (1, 0.5, 1)])
def test_the_bound_is_scikit_learns(n, epsilon, k):
    from sklearn.random_projection import johnson_lindenstrauss_min_dim

    assert johnson_lindenstrauss(n, epsilon) == k == max(int(johnson_lindenstrauss_min_dim(n, eps=epsilon)), 1)


@pytest.mark.parametrize("n, rate, count", [(10, 0.0, 10), (10, 0.5, 5), (10, 0.99, 1), (1, 0.9, 1), (2048, 0.8, 410)])
def test_how_many_are_kept(n, rate, count):
    assert kept_of(n, rate) == count


@pytest.mark.parametrize("rate", [0.3, 0.5, 0.9, 0.999])
def test_a_batch_shares_the_neurons_that_are_guessed_to_give_most(dev, rate):
    model, x = network(device=dev), Tensor(samples()[0], dev)
    layer = model.layers[0]
    chosen = DynamicSparseGraph(rate, epsilon=0.99, samples=N)
    assert johnson_lindenstrauss(60, 0.99) < 200
    plan = plan_of(chosen, model, x)
    k = johnson_lindenstrauss(60, 0.99)
    fx, fw = (project_reference(v, ternary(k, 200, 0), k) for v in (x.numpy(), layer.weight.numpy()))
    scores = np.maximum(fx @ fw.T + layer.bias.numpy(), 0).sum(0)
    assert isinstance(plan, IndexPlan) and plan.scale == 1.0 and plan.count == kept_of(60, rate)
    np.testing.assert_array_equal(plan.indices(), np.sort(np.argsort(scores)[-plan.count :]))


@pytest.mark.slow
@pytest.mark.parametrize("share", ["batch", "tile", "sample"])
def test_of_equal_scores_the_first_are_kept(dev, share):
    model, some = network(hidden=200, device=dev), np.arange(200) >= 180
    dev.copy(dev.upload(np.float32(some)), out=model.layers[0].bias.data)
    mask = plan_of(DynamicSparseGraph(0.5, epsilon=0.9, share=share), model, Tensor(np.zeros((N, 200)), dev)).mask()
    assert (mask == (some | (np.arange(200) < 80))).all()


def test_without_fewer_numbers_than_inputs_the_outputs_themselves_are_looked_at(dev):
    model, x = network(inputs=20, device=dev), Tensor(samples(inputs=20)[0], dev)
    layer, chosen = model.layers[0], DynamicSparseGraph(0.5, samples=N)
    scores = np.maximum(np.float64(x.numpy()) @ layer.weight.numpy().T, 0).sum(0)
    np.testing.assert_array_equal(plan_of(chosen, model, x).indices(), np.sort(np.argsort(scores)[-30:]))
    said = chosen.caution(model.droppable()[0])
    assert "20 inputs and 60 outputs would be projected to 196 numbers" in said and "larger epsilon" in said
    assert DynamicSparseGraph(0.5).caution(network(inputs=200).droppable()[0]) is None
    assert DynamicSparseGraph(0.0).caution(model.droppable()[0]) is None


@pytest.mark.parametrize("count, looked", [(1, 1), (7, 7), (16, 16), (40, 40), (100, 40)])
def test_so_many_samples_are_looked_at(count, looked):
    """FLOPs are those of these samples: additions for their projection and, once, that of the weights, and the product."""
    model, chosen = network(), DynamicSparseGraph(0.5, epsilon=0.9, samples=count)
    k = johnson_lindenstrauss(60, 0.9)
    plan_of(chosen, model, Tensor(samples()[0]))
    additions = ternary(k, 200, 0).columns.size
    assert chosen.pop_flops() == (looked + 60) * additions + 2 * looked * k * 60 and chosen.pop_flops() == 0


def test_weights_are_projected_anew_after_so_many_steps():
    model, x = network(), Tensor(samples()[0])
    chosen, w = DynamicSparseGraph(0.5, epsilon=0.9, refresh=3), model.layers[0].weight
    before = plan_of(chosen, model, x)
    w.data[:] = np.random.default_rng(5).standard_normal(w.shape)
    assert all(plan_of(chosen, model, x) == before for _ in range(2))
    after = plan_of(chosen, model, x)
    assert after != before and after == plan_of(DynamicSparseGraph(0.5, epsilon=0.9), model, x)
    assert plan_of(chosen.calibrated(model, None), model, x) == after  # a new epoch begins with a projection


@pytest.mark.slow
def test_rows_of_a_weight_are_projected_anew_in_turn(dev, monkeypatch):
    """Of 60 rows 32 in one step and 28 in the next one, so that after two steps none is old; on CUDA they are copied once."""
    monkeypatch.setattr(guesses, "ROWS", 16)
    model, x = network(device=dev), Tensor(samples()[0], dev)
    chosen, w, plans, spent = DynamicSparseGraph(0.5, epsilon=0.99, refresh=2), model.layers[0].weight, [], []
    copied, kind, k = [], type(w.data), johnson_lindenstrauss(60, 0.99)
    if do := getattr(kind, "copy_to_device", None):
        monkeypatch.setattr(kind, "copy_to_device", lambda self, *given: copied.append(self.shape) or do(self, *given))
    for step in range(5):
        plans.append(plan_of(chosen, model, x))
        spent.append(chosen.pop_flops())
        if step == 0:
            dev.copy(dev.upload(np.random.default_rng(5).standard_normal(w.shape).astype(np.float32)), out=w.data)
    additions = ternary(k, 200, 0).columns.size
    assert [flops - 2 * 16 * k * 60 for flops in spent] == [(16 + rows) * additions for rows in (60, 28, 32, 28, 32)]
    assert [shape for shape in copied if shape[-1] == k] == [(rows, k) for rows in (28, 32, 28, 32)] * (dev.name != "cpu")
    assert plans[0] != plans[1] != plans[2] == plans[3] == plans[4] == plan_of(DynamicSparseGraph(0.5, epsilon=0.99), model, x)


def test_what_comes_compact_is_looked_at_as_it_is_dense(dev):
    """The second layer's input holds what the first one kept."""
    model, x = network(device=dev), Tensor(samples()[0], dev)
    chosen, seen, tree = DynamicSparseGraph(0.5, epsilon=0.9), {}, Tree(model)
    asked = chosen.choosing(tree, None)

    def choose(site, flow, layer):
        seen[layer] = flow
        return asked(site, flow, layer)

    plans = Plans(dev, tree.sites, choose=choose)
    model(x, Context(dev, plans))
    second = model.layers[2]
    assert len(plans.assigned) == 2 and seen[second].x.shape == (N, 30)
    dense = Tensor(seen[second].dense().numpy(), dev)
    site = model.droppable()[1]
    assert chosen.choose_from_flow(site, Flow(dense), second, None) == plans.of(second)
    assert asked(tree.sites[model.layers[4], "output"], Flow(dense), model.layers[4]) is None  # the answer


@pytest.mark.parametrize("rate", [0.3, 0.9, 0.999])
def test_each_sample_has_its_largest_guesses(dev, rate):
    model, x = network(device=dev), Tensor(samples()[0], dev)
    layer, k = model.layers[0], johnson_lindenstrauss(60, 0.9)
    plan = plan_of(DynamicSparseGraph(rate, epsilon=0.9, share="sample"), model, x)
    fx, fw = (project_reference(v, ternary(k, 200, 0), k) for v in (x.numpy(), layer.weight.numpy()))
    largest = np.argsort(fx @ fw.T + layer.bias.numpy(), axis=1)[:, -kept_of(60, rate) :]
    assert isinstance(plan, SamplePlan) and plan.count == N * kept_of(60, rate) and plan.group == 1
    assert np.take_along_axis(plan.mask(), largest, 1).all()


def test_a_tile_has_the_largest_scores_of_its_samples(dev):
    model, x = network(inputs=20, device=dev), Tensor(samples(inputs=20)[0], dev)  # k would be more than the inputs
    plan = plan_of(DynamicSparseGraph(0.5, share="tile", group=16), model, x)
    y = np.maximum(np.float64(x.numpy()) @ model.layers[0].weight.numpy().T, 0)
    assert plan.bits.shape == (3, 2) and plan.count == N * 30
    for first in (0, 16, 32):
        best = np.argsort(y[first : first + 16].sum(0))[-30:]
        assert plan.mask()[first : first + 16][:, best].all()


def test_a_shared_threshold_is_that_of_the_first_samples():
    model, x = network(), Tensor(samples()[0])
    plan = plan_of(DynamicSparseGraph(0.7, epsilon=0.9, share="sample", threshold="shared"), model, x)
    exact = plan_of(DynamicSparseGraph(0.7, epsilon=0.9, share="sample"), model, x)
    assert len(set(plan.counts)) > 1 and plan.density == pytest.approx(0.3, abs=0.05)
    assert np.mean(plan.mask() == exact.mask()) > 0.9


@pytest.mark.parametrize("share", ["batch", "tile", "sample"])
def test_sequences_are_chosen_from_as_their_positions(share):
    """(N, T, I) gives what (N T, I) gives."""
    model, x = network(), samples()[0]
    chosen = DynamicSparseGraph(0.5, epsilon=0.9, share=share, group=16)
    flat, found = (model(Tensor(x.reshape(*shape, 200)), choosing(chosen, model, "cpu")) for shape in ((N,), (8, N // 8)))
    np.testing.assert_allclose(found.numpy().reshape(N, 3), flat.numpy(), rtol=1e-5, atol=1e-5)
