"""PyTorch's DataLoader as `batches` of a fit: the same training as on arrays, once through the loader in each epoch."""

import numpy as np
import pytest

from numbanet import Net, NetRegressor
from numbanet.layers import LSTM, Conv2d, Embedding, Flatten, LastStep, Linear, ReLU

torch = pytest.importorskip("torch", reason="PyTorch is the other side (extra `test`)")
DataLoader, TensorDataset = torch.utils.data.DataLoader, torch.utils.data.TensorDataset

rng = np.random.default_rng(0)
X = rng.standard_normal((200, 6)).astype(np.float32)
Y = (X[:, 0] + X[:, 1] > 0).astype(np.int64)
BASE = {"epochs": 3, "random_state": 0, "device": "cpu"}


class Counted(TensorDataset):
    """A data set that counts how often each sample was read."""

    def __init__(self, *tensors):
        super().__init__(*tensors)
        self.read = np.zeros(len(tensors[0]), int)

    def __getitem__(self, index):
        self.read[index] += 1
        return super().__getitem__(index)


def test_a_loader_trains_as_a_list_of_its_batches():
    weights = torch.rand(200) + 0.5
    loader = DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y), weights), batch_size=32)
    parts = [(X[i : i + 32], Y[i : i + 32], weights.numpy()[i : i + 32]) for i in range(0, 200, 32)]
    for dropout in ("none", "rdp"):
        ours = Net((16,), dropout=dropout, **BASE).fit(batches=parts)
        theirs = Net((16,), dropout=dropout, **BASE).fit(batches=loader)
        np.testing.assert_array_equal(ours.predict_proba(X), theirs.predict_proba(torch.tensor(X)))
        assert [record["loss"] for record in ours.history_] == [record["loss"] for record in theirs.history_]


def test_each_epoch_reads_the_loader_once_in_its_own_order():
    samples = Counted(torch.tensor(X), torch.tensor(Y))
    seen = []

    def collate(pairs):
        batch = torch.utils.data.default_collate(pairs)
        seen.append(batch[0][:, 0].numpy().copy())
        return batch

    torch.manual_seed(0)
    net = Net((16,), dropout="none", **BASE).fit(batches=DataLoader(samples, batch_size=50, shuffle=True, collate_fn=collate))
    assert net.n_iter_ == 3
    # a pass for the classes, an example, and one in each epoch
    assert (samples.read >= 4).all() and (samples.read <= 5).all()
    epochs = [np.concatenate(seen[i : i + 4]) for i in range(len(seen) - 12, len(seen), 4)]
    assert all(np.array_equal(np.sort(epoch), np.sort(X[:, 0])) for epoch in epochs)
    assert not np.array_equal(epochs[0], epochs[1])


def test_images_symbols_numbers_and_dropped_ends():
    images = torch.rand(60, 1, 6, 6)
    layers = [Conv2d(1, 3, 3, rng=0), ReLU(), Flatten(), Linear(48, 2, rng=0)]
    loader = DataLoader(TensorDataset(images, (images.mean((1, 2, 3)) > 0.5).long()), 16, shuffle=True, drop_last=True)
    assert Net(layers, **BASE).fit(batches=loader).predict(images).shape == (60,)
    words = torch.randint(0, 9, (60, 5))
    layers = [Embedding(9, 4, rng=0), LSTM(4, 5, batch_first=True, rng=0), LastStep(), Linear(5, 2, rng=0)]
    assert Net(layers, **BASE).fit(batches=DataLoader(TensorDataset(words, words[:, 0] % 2), 16)).predict(words).shape == (60,)
    targets = DataLoader(TensorDataset(torch.tensor(X), torch.tensor(X[:, 0] * 40 + 7)), 40)
    net = NetRegressor((16,), **{**BASE, "epochs": 60}).fit(batches=targets)
    assert net.score(X, X[:, 0] * 40 + 7) > 0.8
    net = Net((16,), early_stopping=True, **BASE).fit(
        batches=DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y)), 40), validation=(torch.tensor(X), torch.tensor(Y))
    )
    assert "validation_score" in net.history_[-1]


def test_workers_of_a_loader_are_other_processes():
    loader = DataLoader(TensorDataset(torch.tensor(X), torch.tensor(Y)), 50, num_workers=1)
    ours = Net((16,), **BASE).fit(batches=[(X[i : i + 50], Y[i : i + 50]) for i in range(0, 200, 50)])
    np.testing.assert_array_equal(Net((16,), **BASE).fit(batches=loader).predict_proba(X), ours.predict_proba(X))


def test_a_loader_without_targets_is_refused():
    with pytest.raises(ValueError, match="batches must be a list of"):
        Net((16,), **BASE).fit(batches=DataLoader(torch.tensor(X), 50))
