"""The command line: `train --save` writes a file, `predict` reads it."""

import warnings

import numpy as np
import pytest

from numbanet import Net, NetRegressor, cli
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
