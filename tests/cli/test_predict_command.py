"""The command line: `train --save` writes a file, `predict` reads it."""

import warnings

import numpy as np
import pytest

from numbanet import LSTM, Embedding, Linear, Net, NetRegressor, cli
from tests.estimators.saved_cases import CASES, FAST, WORDS, X_TEST, Y_TEST, X, Y, language

pytestmark = pytest.mark.filterwarnings("ignore:fit. the network is no better")  # after so few epochs


def run(capsys, *arguments):
    with warnings.catch_warnings():
        status = cli.main(list(map(str, arguments)))
    return status, *capsys.readouterr()


def test_train_saves_and_predict_reads(tmp_path, capsys):
    path = tmp_path / "digits.safetensors"
    status, out, _ = run(capsys, "train", "--layers", 32, "--epochs", 3, "--quiet", "--save", path)
    assert status == 0 and "saved: " in out
    net = Net.load(path)
    np.save(tmp_path / "x.npy", X_TEST)
    np.savetxt(tmp_path / "x.csv", X_TEST, delimiter=",")
    for samples in ("digits", tmp_path / "x.npy", tmp_path / "x.csv"):
        status, out, err = run(capsys, "predict", path, samples)
        assert status == 0 and out.split() == [str(label) for label in net.predict(X_TEST)]
        assert (f"score {net.score(X_TEST, Y_TEST):.4f} on these 360 samples" in err) == (samples == "digits")
    status, out, _ = run(capsys, "predict", path, tmp_path / "x.npy", "--probabilities", "--device", "cpu")
    first, *rows = out.splitlines()
    assert status == 0 and first == "0,1,2,3,4,5,6,7,8,9"
    np.testing.assert_allclose([list(map(float, row.split(","))) for row in rows], net.predict_proba(X_TEST), rtol=1e-6)


def test_predict_takes_regressors(tmp_path, capsys):
    net = NetRegressor((8,), **FAST).fit(X, np.stack([Y, -Y], 1))
    net.save(tmp_path / "net")
    np.save(tmp_path / "x.npy", X_TEST)
    status, out, _ = run(capsys, "predict", tmp_path / "net", tmp_path / "x.npy")
    assert status == 0 and len(out.splitlines()) == len(X_TEST) and out.count(",") == len(X_TEST)
    status, _, err = run(capsys, "predict", tmp_path / "net", tmp_path / "x.npy", "--probabilities")
    assert status == 2 and "NetRegressor, which has no classes" in err


def test_what_cannot_be_predicted_is_one_line_and_status_2(tmp_path, capsys):
    saved, _ = tmp_path / "net", CASES["none"]()[0].save(tmp_path / "net")
    for name, content in (("a.csv", "1,2\n3,x\n"), ("b.npy", "text"), ("c.csv", "1,2\n3\n"), ("d.csv", "1,2\n")):
        (tmp_path / name).write_text(content)
    language().fit(WORDS).save(tmp_path / "text")
    for arguments, named in (
        ((tmp_path / "none", "digits"), "none"),
        ((tmp_path / "a.csv", "digits"), "a.csv is no"),
        ((saved, tmp_path / "a.csv"), "a.csv"),
        ((saved, tmp_path / "b.npy"), "b.npy"),
        ((saved, tmp_path / "c.csv"), "c.csv"),
        ((saved, tmp_path / "d.csv"), "2 features"),
        ((saved, "letters"), "letters"),
        ((tmp_path, "digits"), f"cannot load '{tmp_path}': it is a folder; give the name of a file in it"),
        ((saved, tmp_path / "no.npy"), "no.npy"),
        ((tmp_path / "text", "digits"), "a LanguageModel, not a Net or NetRegressor"),
    ):
        status, out, err = run(capsys, "predict", *arguments)
        assert status == 2 and out == "" and err.count("\n") == 1 and "error: " in err and named in err
    for target, named in ((tmp_path, "it is a folder"), (tmp_path / "no" / "net", "no folder")):
        status, out, err = run(capsys, "train", "--epochs", 1, "--save", target)
        assert status == 2 and out == "" and named in err


@pytest.mark.parametrize(
    "classes, cells",
    [
        (["01", "02", "x"], ["01", "02", "02"]),
        (["1.0", "2.50", "x"], ["1.0", "2.50", "2.50"]),
        ([False, True, True], ["False", "True", "True"]),
        ([False, True, True], ["0", "1", "1"]),
        ([0.0, 1.0, 2.0], ["0", "1", "2"]),
    ],
)
def test_targets_are_read_in_the_form_of_the_classes(classes, cells, tmp_path, capsys):
    which = np.argsort(np.argsort(X[:, 20])) * 3 // len(X)
    net = Net((16,), **FAST).fit(X, np.array(classes)[which])
    net.save(tmp_path / "net")
    rows = [",".join([*map(str, row), cell]) for row, cell in zip(X, np.array(cells)[which])]
    (tmp_path / "x.csv").write_text("\n".join(rows))
    status, _, err = run(capsys, "predict", tmp_path / "net", tmp_path / "x.csv", "--target", "-1")
    score = net.score(X, np.array(classes)[[0, 1, 1] if cells[1] == cells[2] else [0, 1, 2]][which])
    assert status == 0 and f"score {score:.4f} on" in err and score > 0
    (tmp_path / "x.csv").write_text("\n".join(",".join([*map(str, row), "7"]) for row in X))
    status, out, err = run(capsys, "predict", tmp_path / "net", tmp_path / "x.csv", "--target", "-1")
    assert (status, out) == (2, "") and "nothing in the column '-1', such as '7', is one of the classes of the network" in err


def test_words_are_no_classes_of_a_network_with_numbers(tmp_path, capsys):
    Net((8,), **FAST).fit(X, Y).save(tmp_path / "net")
    (tmp_path / "x.csv").write_text("\n".join(",".join([*map(str, row), "one"]) for row in X))
    status, out, err = run(capsys, "predict", tmp_path / "net", tmp_path / "x.csv", "--target", "-1")
    assert (status, out) == (2, "") and "such as 'one', is one of the classes of the network, 0, 1" in err


def test_probabilities_of_time_steps_are_refused(tmp_path, capsys):
    words = np.random.default_rng(0).integers(0, 9, (20, 5))
    Net([Embedding(9, 4), LSTM(4, 6, batch_first=True), Linear(6, 3)], **FAST).fit(words, words % 3).save(tmp_path / "net")
    np.save(tmp_path / "x.npy", words)
    status, out, _ = run(capsys, "predict", tmp_path / "net", tmp_path / "x.npy")
    assert status == 0 and len(out.splitlines()) == 20
    status, out, err = run(capsys, "predict", tmp_path / "net", tmp_path / "x.npy", "--probabilities")
    assert (status, out) == (2, "") and "labels for each time step: leave it out" in err


def test_an_archive_by_another_name_is_refused(tmp_path, capsys):
    Net((8,), **FAST).fit(X, Y).save(tmp_path / "net")
    np.savez(tmp_path / "x.npz", X)
    (tmp_path / "x.npz").rename(tmp_path / "x.npy")
    for command in (("predict", tmp_path / "net", tmp_path / "x.npy"), ("train", "--data", tmp_path / "x.npy", "--target", 0)):
        status, _, err = run(capsys, *command)
        assert status == 2 and "x.npy: it is a .npz archive of arrays: save the table alone" in err
