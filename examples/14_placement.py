# %% [markdown]
# # 14. Which device for which layer
#
# A network is described once. Which device computes which layer is decided at run time, from what each device was measured to
# need for it: time, power and energy, forward, backward and update, and moves of activations between memories. This is the idea
# of CNNLab; its devices were a GPU and an FPGA board. Ours are the CPU with one thread, the CPU with all threads, and PyTorch's
# products and convolutions, if PyTorch is installed.
#
# Source: Zhu, Liu, Wang, Xie, "CNNLab: a Novel Parallel Framework for Neural Networks using GPU and FPGA" (2016). Only its
# abstract was at hand.

# %%
import dataclasses
import functools
import os
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np

from numbanet import Net
from numbanet.device import problem
from numbanet.placement import ESTIMATED, DeviceFacts, Figure, LayerTimes, Transfer, choose, pareto, profile
from numbanet.plots import layer_rooflines, time_and_energy

PICTURES = Path(os.environ.get("NUMBANET_PICTURES", "pictures"))
PICTURES.mkdir(parents=True, exist_ok=True)
BLUE, ORANGE, GREY, PALE = "#1d4e79", "#e08e3c", "#6b7280", "#d7dde5"
plt.rcParams.update({"font.size": 11, "axes.spines.top": False, "axes.spines.right": False, "figure.dpi": 120})
picture = plt.savefig


def save(name):
    picture(PICTURES / name)
    if picture is not plt.savefig:  # it is in the file only: show it
        pixels = plt.imread(PICTURES / name)
        plt.figure(figsize=(10, 10 * pixels.shape[0] / pixels.shape[1]))
        plt.axes((0, 0, 1, 1)).imshow(pixels)
        plt.axis("off")
    print("wrote", PICTURES / name)


# %% [markdown]
# ## Measure: one network, three devices
#
# `profile` measures each layer of AlexNet for small images as it runs in the model: warm, on the activations that the layers
# before it compute, and fused with the next layer where the model fuses them. This machine may have no counter of energy, so
# the watts of each device are *stated* here; energy is then watts times time, and is marked as an estimate by "~". With one
# thread in all, as in the tests of this walkthrough, "cpu" and "cpu:1" compute alike.

# %%
WATTS = {"cpu:1": 20.0, "cpu": 35.0, "torch": 35.0}  # stated, not measured
devices = [name for name in WATTS if problem(name) is None]
found = profile("alexnet", (8, 3, 32, 32), devices, watts={name: WATTS[name] for name in devices}, runs=2, seconds=0.001)
print(found.machine, "|", found.date)


def milliseconds(table, stage, device):
    """ms of a layer in a training step: forward, backward and update."""
    return table.cost(stage, device, True)[0].value


def short(stage):
    return f"{stage.path} {stage.kind.split(' +')[0]}"


print(f"{'ms of a training step':24s}", *(f"{name:>8s}" for name in devices), "  fastest   GFLOP  FLOPs per byte")
for stage in found.stages:
    times = [milliseconds(found, stage, name) for name in devices]
    entries = [found.of(stage.path, devices[0], direction) for direction in stage.directions(True)]
    flops, moved = sum(e.flops for e in entries), sum(e.bytes for e in entries)
    row = " ".join(f"{ms:8.2f}" for ms in times)
    print(f"{short(stage):24s} {row}   {devices[int(np.argmin(times))]:8s} {flops / 1e9:6.2f} {flops / moved:10.1f}")

# %% [markdown]
# Who wins which layer, and why? Convolutions of many channels do many FLOPs for each byte, so they are limited by arithmetic:
# there the device with the better loops or more threads wins. A linear layer on few samples reads each weight for 8 samples
# only, so the memory limits it, and more threads or another library help little. Pooling and the last layer are so small that
# waking threads, or calling another library, may cost more than the work.

# %%
fig, ax = plt.subplots(figsize=(10, 4.2), layout="constrained")
width = 0.8 / len(devices)
for k, (name, colour) in enumerate(zip(devices, (BLUE, ORANGE, GREY))):
    at = np.arange(len(found.stages)) + (k - (len(devices) - 1) / 2) * width
    ax.bar(at, [milliseconds(found, stage, name) for stage in found.stages], width, color=colour, label=name)
ax.set_xticks(range(len(found.stages)), [short(stage) for stage in found.stages], rotation=35, ha="right", fontsize=9)
ax.set(yscale="log", ylabel="ms of a training step")
ax.set_title("AlexNet, 8 images: each layer on each device", loc="left", fontsize=11)
ax.legend(frameon=False, ncols=len(devices), loc="lower right", bbox_to_anchor=(1, 1))
save("placement_layers.png")

# %% [markdown]
# The roofline shows the same by arithmetic intensity. A layer below the roof of its device leaves something; the roof is what
# the best layer reached there.

# %%
picture = functools.partial(layer_rooflines, found)
save("placement_rooflines.png")

# %% [markdown]
# ## Choose
#
# `choose` finds the devices with the least time, energy or energy-delay product. Times and energies add up along a chain of
# layers, so a dynamic programme is exact: the best way to have layer k on device d extends a best way to have layer k - 1 on
# some device. The product of time and energy does not add up, so there the programme keeps all ways that no other beats in
# both: the Pareto front.

# %%
for objective in ("time", "energy", "edp"):
    print(choose(found, objective), "\n")
front = pareto(found, what_if=True)
print("the Pareto front, from fast to thrifty:")
for each in front[:: max(1, len(front) // 6)]:
    print(f"{each.ms.value:8.1f} ms {each.joules.value:7.2f} J   ", " ".join(stage.device for stage in each.stages))
picture = functools.partial(time_and_energy, {"alexnet, 8 images": found})
save("placement_energy.png")

# %% [markdown]
# ## A sum is not a step
#
# On one device, numbanet records a step and replays it without the interpreter; a step on several devices runs layer by layer.
# And devices disturb each other: threads that wait for work take a core from those that have some. So `Net(objective="time")`
# measures layers in whole steps, and changes of device with them. Then whole steps of the best placements and of each device
# alone are measured in turns, and the fastest one is taken: a placement on several devices must prove that it is faster.
# `placement.steps` gives `choose` such a race for your own training loop. The first epoch takes longer than predicted, because
# its first steps are not recorded yet.

# %%
rng = np.random.default_rng(0)
X = rng.standard_normal((512, 64), np.float32)
y = (X @ rng.standard_normal((64, 4))).argmax(1)
net = Net((256, 64), objective="time", epochs=4, batch_size=64, random_state=0).fit(X, y)
print(net.placement_)
for record in net.history_:
    print(f"a step took {record['step_ms']:.2f} ms, and was predicted to take {record['predicted_step_ms']:.2f} ms")

# %% [markdown]
# ## What if there were a GPU?
#
# A profile is a table, so a device can be added that is not there. Here it is *made up* from what a data sheet states, about
# that of an NVIDIA K40: 4.3 TFLOP/s, 288 GB/s, 235 W, and a bus of 10 GB/s; a launch is assumed to take 10 µs. Nothing reaches
# the figures of a data sheet, so all these times are too good, and they are marked as estimates. An estimate never decides
# against a measurement, unless we say `what_if=True`.

# %%
SHEET, FLOPS, BYTES, LAUNCH_MS = "GPU (data sheet)", 4.3e12, 288e9, 0.01


def with_gpu(table):
    """The profile with a GPU that is made up."""
    entries = []
    for entry in (e for e in table.entries if e.device == "cpu"):
        ms = 1e3 * max(entry.flops / FLOPS, entry.bytes / BYTES) + LAUNCH_MS
        figures = Figure(ms, ESTIMATED), Figure(235.0, ESTIMATED), Figure(235.0 * ms / 1e3, ESTIMATED)
        own = dataclasses.replace(entry, device=SHEET, ms=figures[0], watts=figures[1], joules=figures[2])
        assert isinstance(own, LayerTimes)
        entries.append(own)
    per_mb, latency, drawn = Figure(0.1, ESTIMATED), Figure(0.02, ESTIMATED), Figure(270.0, ESTIMATED)
    moves = tuple(Transfer(a, b, per_mb, latency, drawn) for a, b in (("cpu", SHEET), (SHEET, "cpu")))
    made_up = DeviceFacts(SHEET, SHEET, watts=235.0)
    return dataclasses.replace(
        table, devices=(*table.devices, made_up), entries=(*table.entries, *entries), transfers=(*table.transfers, *moves)
    )


imagined = with_gpu(found)
everything = choose(imagined, what_if=True, start="cpu")
print(everything)
assert SHEET in everything.devices.values()
assert SHEET not in choose(imagined).devices.values()  # an estimate does not decide against a measurement

# %% [markdown]
# AlexNet's convolutions and large linear layers all go there. A network that begins and ends with tiny layers is split: large
# products on the GPU, tiny layers at home, if they save more launches than the moves between the memories cost.

# %%
from numbanet.layers import Linear, ReLU  # noqa: E402  as in a notebook: where it is needed

widths = (8, 8, 8, 8, 2048, 2048, 8, 8, 8)
layers = [part for n_in, n_out in zip(widths, widths[1:]) for part in (Linear(n_in, n_out, rng=0), ReLU())]
tiny = with_gpu(profile(layers, (32, 8), ["cpu"], watts={"cpu": WATTS["cpu"]}, runs=3, seconds=0.002))
split = choose(tiny, what_if=True, start="cpu")
print(split)
assert SHEET in split.devices.values()

fig, ax = plt.subplots(figsize=(10, 4.2), layout="constrained")
at = np.arange(len(tiny.stages))
for name, colour, mark in (("cpu", BLUE, "o"), (SHEET, ORANGE, "s")):
    ax.plot(at, [milliseconds(tiny, stage, name) for stage in tiny.stages], mark, color=colour, label=name, markersize=8)
here = [milliseconds(tiny, stage, placed.device) for stage, placed in zip(tiny.stages, split.stages)]
ax.plot(at, here, "o", color="black", markerfacecolor="none", markersize=16, label="chosen")
moves = [placed.transfer_ms.value for placed in split.stages]
ax.bar(at, moves, 0.3, color=PALE, label="moves of its input and gradient")
ax.set_xticks(at, [f"{stage.path}: {stage.inputs[1]} to {stage.outputs[1]}" for stage in tiny.stages], rotation=20)
ax.set(yscale="log", ylabel="ms of a training step", ylim=(1e-3, None))
ax.legend(frameon=False, fontsize=10)
ax.set_title("What if: a GPU by its data sheet beside this machine's CPU", loc="left", fontsize=11)
picture = plt.savefig
save("placement_what_if.png")

# %% [markdown]
# The same on your machine: `numbanet devices --profile alexnet`, and with energy that is measured, not stated, where a counter
# can be read (NVIDIA's, or RAPL's on Linux).
