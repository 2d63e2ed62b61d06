"""rsdp tells the device which share of the positions it keeps on average, by which the CPU chooses how to compute them; the
FLOPs that are counted are those of the kept positions.
"""

import numpy as np
import pytest

from numbanet import Conv2d, Flatten, Linear, Net, RowSensitiveDropout
from numbanet.flops import StepFlops
from numbanet.layers import ActivationSpec
from numbanet.plans import PositionPlan
from numbanet_kernels.families.conv import cpu


def test_the_flops_of_a_step_are_those_of_the_kept_positions(monkeypatch):
    seen, counted = [], StepFlops.of

    def noted(self, shape, plans):
        if plans.assigned:
            seen.append((counted(self, shape, plans), self.model.cost(ActivationSpec(shape), plans)[0].flops, plans.assigned))
        return counted(self, shape, plans)

    monkeypatch.setattr(StepFlops, "of", noted)
    layers = [Conv2d(1, 3, 3, rng=0), Conv2d(3, 4, 3, rng=0), Flatten(), Linear(64, 2, rng=1)]
    rng = np.random.default_rng(0)
    X, y = rng.random((40, 1, 8, 8), np.float32), np.arange(40) % 2
    Net(layers, dropout="rsdp", image_shape=(1, 8, 8), batch_size=16, epochs=3, random_state=0, device="cpu").fit(X, y)
    assert len(seen) == 9 and all(isinstance(plan, PositionPlan) for *_, assigned in seen for plan in assigned.values())
    assert len({exact for _, exact, _ in seen}) > 4  # other positions in each step
    for found, exact, _ in seen:
        assert found == pytest.approx(exact, rel=1e-12)


@pytest.mark.parametrize("together", [1, 16])
@pytest.mark.parametrize("rate, all_positions", [(0.5, True), (0.9, False)])
def test_wide_convolutions_compute_all_positions_unless_few_are_kept(monkeypatch, rate, together, all_positions):
    """In each step, also in recorded ones, whatever a step happens to keep."""
    found, choose = [], cpu.choose

    def noted(window, shape, plan):
        choice = choose(window, shape, plan)
        found.extend([choice.winograd] if plan.rows is not None else [])
        return choice

    monkeypatch.setattr(cpu, "choose", noted)
    layers = [Conv2d(64, 64, 3, padding=1, rng=0), Flatten(), Linear(64 * 64, 2, rng=1)]
    rng = np.random.default_rng(0)
    X, y = rng.random((64, 64, 8, 8), np.float32), np.arange(64) % 2
    policy = RowSensitiveDropout(rate, together=together, thresholds={0: 1.0})
    Net(layers, dropout=policy, image_shape=(64, 8, 8), batch_size=32, epochs=4, random_state=0, device="cpu").fit(X, y)
    assert len(found) >= 2 and set(found) == {all_positions}  # forward and backward
