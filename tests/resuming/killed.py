"""What a process does that trains with checkpoints, for tests that kill it.

It goes on from the folder if there is a checkpoint, counts its steps in the file FOLDER.steps, and writes its final state to
FOLDER.npz.
"""

import os
import struct
from pathlib import Path

import numpy as np

from numbanet import Hook, Net
from numbanet.datasets import load_digits
from numbanet_kernels.host import thresholds

EVERY = 3


class Steps(Hook):
    """Writes the number of steps to a file, after each step."""

    watches = changes = False

    def __init__(self, path):
        self.file = os.open(path, os.O_RDWR | os.O_CREAT)

    def after_update(self, run):
        os.pwrite(self.file, struct.pack("q", run.optimizer.steps), 0)


def final(net):
    arrays = {f"weight {name}": array for name, array in net.model_.state_dict().items()}
    arrays["losses"] = np.array([record["loss"] for record in net.history_])
    return arrays


def trained(folder, seed, epochs, **options):
    X, y, _, _ = load_digits()
    callbacks = [Steps(f"{folder}.steps")]
    with thresholds.using(thresholds.Thresholds(lazy_elements=0)):
        if any(Path(folder).glob("checkpoint-*.safetensors")):
            return Net.resume(folder, callbacks=callbacks).fit(X[:300], y[:300])
        net = Net(
            (32, 32),
            dropout="rdp",
            epochs=epochs,
            batch_size=40,
            random_state=seed,
            device="cpu",
            n_jobs=1,
            callbacks=callbacks,
        )
        return net.fit(X[:300], y[:300], checkpoint=folder, every=EVERY, **options)


def main(folder, seed, epochs):
    np.savez(f"{folder}.new.npz", **final(trained(folder, seed, epochs)))
    os.replace(f"{folder}.new.npz", f"{folder}.npz")  # a process that is killed leaves no part of it
