"""`numbanet train` and `predict` with tables of one's own: CSV and NPY files with a target column."""

import csv
import re
from pathlib import Path

import numpy as np
import pytest

from numbanet import Net, NetRegressor, Normalize, cli
from numbanet.cli import own_data

TRAIN = ["train", "--layers", "16", "--dropout", "none", "--quiet"]
FLOWERS = ("rose", "lily, white", "tulip")


@pytest.fixture
def table(tmp_path, rng, monkeypatch):
    """The features, and files in the folder of the test: flowers.csv with words, prices.csv and .npy with numbers."""
    monkeypatch.chdir(tmp_path)
    X = rng.standard_normal((150, 3)) * [1, 100, 0.01] + [0, 500, 7]
    scaled = (X - X.mean(0)) / X.std(0)
    kinds = np.argmax(scaled, 1)
    rows = [f'{a:.9g},"{FLOWERS[kind]}",{b:.9g},{c:.9g}' for (a, b, c), kind in zip(X, kinds)]
    (tmp_path / "flowers.csv").write_text("width,kind,height,weight\n" + "\n".join(rows) + "\n", encoding="utf-8-sig")
    price = scaled @ [1.0, -2.0, 0.5] + 10
    np.savetxt("prices.csv", np.c_[X, price], delimiter=",")
    np.save("prices.npy", np.c_[price, X])
    np.save("counts.npy", np.c_[np.round(price), X])
    return X, kinds, price


def run(capsys, *arguments):
    status = cli.main([*map(str, arguments)])
    return status, *capsys.readouterr()


@pytest.mark.filterwarnings("ignore:fit. the loss was still falling")
def test_words_become_classes_and_the_saved_network_takes_the_file(table, capsys):
    status, out, _ = run(capsys, *TRAIN, "--data", "flowers.csv", "--target", "kind", "--save", "net", "--plot", "curves.svg")
    accuracy = float(out.split("100%")[0].split("│")[4].strip().rstrip("%")) if "test accuracy" in out else 0
    assert status == 0 and accuracy > 85
    net = Net.load("net")
    assert sorted(net.classes_) == sorted(FLOWERS) and isinstance(net.model_.layers[0], Normalize)
    status, out, err = run(capsys, "predict", "net", "flowers.csv", "--target", "1")
    assert status == 0 and "on these 150 samples" in err and float(err.split("score ")[1].split()[0]) > 0.85
    assert [row for (row,) in csv.reader(out.splitlines())] == [*net.predict(table[0].astype(np.float32))]
    assert run(capsys, "predict", "net", "flowers.csv")[1:] == (out, "numbanet: flowers.csv: the network does not use 'kind'\n")
    Path("text.csv").write_text(re.sub("\n[^,]+,", "\nwide,", Path("flowers.csv").read_text(encoding="utf-8-sig"), count=1))
    status, _, err = run(capsys, "predict", "net", "text.csv")
    assert status == 2 and "text.csv: line 2: column 'width' has the text 'wide': features must be" in err


@pytest.mark.parametrize("data, target", [("prices.csv", "3"), ("prices.csv", "-1"), ("prices.npy", "0")])
def test_numbers_with_fractions_are_predicted_as_values(table, capsys, data, target):
    status, out, _ = run(capsys, *TRAIN, "--data", data, "--target", target, "--save", "net")
    assert status == 0 and "test R²" in out
    net = NetRegressor.load("net")
    assert net.score(table[0], table[2]) > 0.9 and net.optimizer == "adam"


def test_integers_are_classes_unless_a_regression_is_asked_for(table, capsys):
    status, out, _ = run(capsys, *TRAIN, "--data", "counts.npy", "--target", "0", "--epochs", "2", "--regression")
    assert status == 0 and "test R²" in out
    assert "test accuracy" in run(capsys, *TRAIN, "--data", "counts.npy", "--target", "0", "--epochs", "2")[1]


def test_the_test_set_is_no_validation_set(table, capsys, monkeypatch):
    """What is scored in each epoch is held out of the training set; the test set is scored once, at the end."""
    seen = {}

    def fit(net, X, y, validation=None, **options):
        seen.update(train=X, validation=validation and validation[0])
        return original(net, X, y, validation=validation, **options)

    original = Net.fit
    monkeypatch.setattr(Net, "fit", fit)
    monkeypatch.setattr(Net, "score", lambda net, X, y: seen.update(test=X) or 0.5)
    for options, sizes in (((), (108, 12, 30)), (("--test", "0.4", "--validation", "0"), (90, None, 60))):
        run(capsys, *TRAIN, "--data", "flowers.csv", "--target", "kind", "--epochs", "1", *options)
        assert tuple(None if seen[name] is None else len(seen[name]) for name in ("train", "validation", "test")) == sizes
    parts = np.concatenate([part for part in seen.values() if part is not None])
    assert len(np.unique(parts, axis=0)) == 150
    run(capsys, *TRAIN, "--epochs", "1")
    assert len(seen["train"]) + len(seen["validation"]) == 1437 and len(seen["test"]) == 360


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--data", "flowers.csv"], "--target: give the name or the number of the column of flowers.csv"),
        (
            ["--data", "flowers.csv", "--target", "colour"],
            "no column 'colour'; --target is one of 'width', 'kind', 'height', 'weight'",
        ),
        (["--data", "named.csv", "--target", "loss"], "--target is one of 'batch_size', 'epochs', 'score'"),
        (["--data", "flowers.csv", "--target", "4"], "no column '4'"),
        (["--data", "flowers.csv", "--target", "width"], "column 'kind' has the text"),
        (
            ["--data", "flowers.csv", "--target", "kind", "--regression"],
            "--regression: the column 'kind' of flowers.csv is text, such as",
        ),
        (["--data", "none.csv", "--target", "0"], "there is no file none.csv"),
        (["--data", "empty.csv", "--target", "0"], "empty.csv: the file is empty"),
        (["--data", "holes.csv", "--target", "a"], "holes.csv: line 3: column 'b' has an empty cell"),
        (["--data", "nan.npy", "--target", "0"], "nan.npy: row 0 (counted from 0): column '1' has 'nan': fill missing"),
        (["--data", "twice.csv", "--target", "y"], "twice.csv: the first row names more than one column 'a', 'b': name"),
        (["--data", "huge.npy", "--target", "0"], "huge.npy: row 7 (counted from 0): column '1' has '1e+300': features must"),
        (["--data", "huge.npy", "--target", "1"], "row 7 (counted from 0): the target column '1' has '1e+300': values must be"),
        (["--data", "line.npy", "--target", "0"], r"line.npy: a table of numbers (rows, columns) expected, got float64 (3,)"),
        (["--data", "one.csv", "--target", "b"], "one.csv: training, validation, test need a row each, and the file has 1"),
        (["--data", "one.csv", "--target", "b", "--validation", "0"], "one.csv: training, test need a row each"),
        (["--data", "flowers.csv", "--target", "kind", "--test", "1"], "--test must be a share"),
        (["--data", "digits", "--target", "0"], "--target and --regression are for files: digits is no .csv"),
        (["--data", "flowers.txt", "--target", "0"], "flowers.txt"),
    ],
)
def test_what_is_no_table_is_one_line(table, capsys, arguments, message):
    open("empty.csv", "w").close()
    with open("holes.csv", "w") as file:
        file.write("a,b,c\n1,2,3\n4,,6\n")
    with open("named.csv", "w") as file:
        file.write("batch_size,epochs,score\n1,2,3\n4,5,6\n")
    with open("one.csv", "w") as file:
        file.write("a,b\n1,2\n")
    with open("twice.csv", "w") as file:
        file.write("a,b,a,b ,y\n" + "1,2,3,4,0\n2,3,4,5,1\n" * 9)
    np.save("huge.npy", np.array([[1.5, 2.5]] * 7 + [[2.5, 1e300]] * 2))
    np.save("nan.npy", np.array([[1.0, np.nan], [2.0, 3.0]] * 9))
    np.save("line.npy", np.ones(3))
    status, out, err = run(capsys, *TRAIN, *arguments)
    assert (status, out) == (2, "") and err.count("\n") == 1 and message in err


@pytest.mark.parametrize(
    "first, second, header",
    [
        ("a,b", "1,2", True),
        ("1,2", "3,4", False),
        ("1,cat", "2,dog", False),
        ("cat,1", "dog,2", False),
        ("1,2,kind", "3,4,5", True),
        ("width,kind", "1,cat", True),
        ("1,kind", "2,cat", False),
    ],
)
def test_headers(tmp_path, first, second, header):
    (tmp_path / "a.csv").write_text(f"{first}\n{second}\n{second}\n")
    target = next(i for i, cell in enumerate(second.split(",")) if not cell.isdecimal() or i == len(second.split(",")) - 1)
    found = own_data.read(str(tmp_path / "a.csv"), str(target))
    assert len(found.X) == len(found.y) == 3 - header and found.X.dtype == np.float32


def test_a_table_is_trained_without_dropout_and_with_early_stopping(table, capsys, rng):
    """Where targets are noise, the best epoch is an early one; images are trained as before."""
    np.savetxt("noise.csv", np.c_[rng.standard_normal((120, 8)), rng.standard_normal(120)], delimiter=",")
    noise = ["train", "--quiet", "--data", "noise.csv", "--target", "-1", "--layers", "64", "--epochs", "200", "--save", "net"]
    status, out, _ = run(capsys, *noise)
    net = NetRegressor.load("net")
    assert status == 0 and "auto: none" in out and f"{net.n_iter_}, best {net.best_epoch_}" in out
    assert net.early_stopping and net.patience == 20 and net.n_iter_ == net.best_epoch_ + 20 < 200
    assert run(capsys, *noise, "--no-early-stopping", "--dropout", "rdp")[0] == 0
    net = NetRegressor.load("net")
    assert net.n_iter_ == 200 and net.dropout == "rdp"
    assert run(capsys, *noise, "--epochs", "1", "--validation", "0")[0] == 0 and not NetRegressor.load("net").early_stopping
    assert run(capsys, "train", *noise[1:3], "flowers.csv", "--target", "kind", "--epochs", "1", "--save", "net")[0] == 0
    assert not Net.load("net").early_stopping and Net.load("net").dropout == "auto"
    status, _, err = run(capsys, *noise, "--early-stopping", "--validation", "0")
    assert status == 2 and "--early-stopping needs validation samples" in err
    assert run(capsys, "train", "--quiet", "--epochs", "1", "--layers", "8", "--save", "net")[0] == 0
    net = Net.load("net")
    assert net.dropout == "rdp" and not net.early_stopping


def test_help_names_all_kinds_of_dropout_for_these_networks(capsys):
    with pytest.raises(SystemExit):
        cli.main(["train", "--help"])
    text = " ".join(capsys.readouterr().out.split())
    assert all(name in text for name in ("dsg", "window", "batchwise", "digits, mnist", ".csv or .npy file with --target"))


def test_columns_are_found_by_their_names(table, capsys):
    assert run(capsys, *TRAIN, "--data", "flowers.csv", "--target", "kind", "--save", "net")[0] == 0
    lines = Path("flowers.csv").read_text(encoding="utf-8-sig").splitlines()
    turned = [f"{weight},{height},{rest}" for rest, height, weight in (line.rsplit(",", 2) for line in lines)]
    Path("turned.csv").write_text("\n".join(turned))
    first = run(capsys, "predict", "net", "flowers.csv", "--target", "kind")
    assert first[0] == 0 and run(capsys, "predict", "net", "turned.csv", "--target", "kind") == first
    assert "feature names" not in first[2]
    Path("other.csv").write_text("\n".join(turned).replace("weight", "mass"))
    assert "no column 'weight'" in run(capsys, "predict", "net", "other.csv", "--target", "kind")[2]
    np.savetxt("more.csv", np.ones((2, 4)), delimiter=",", header="width,age,weight,height", comments="")
    assert "more.csv: the network does not use 'age'" in run(capsys, "predict", "net", "more.csv")[2]
    values = [*TRAIN, "--data", "prices.csv", "--target", "3", "--epochs", "1", "--save", "net"]
    assert run(capsys, *values)[0] == 0
    Path("words.csv").write_text("".join(f"1,2,3,{word}\n" for word in FLOWERS).replace(", ", " "))
    said = run(capsys, "predict", "net", "words.csv", "--target", "3")
    assert said[0] == 2 and "the column '3' is text, and the network in net predicts values" in said[2]


def test_a_file_for_prediction_is_refused_by_its_header_and_cells(table, capsys):
    assert run(capsys, *TRAIN, "--data", "flowers.csv", "--target", "kind", "--epochs", "1", "--save", "net")[0] == 0
    header, first = "width,height,weight\n", "1,500,7\n"
    for text, message in (
        ("yes,2,3\nno,3,4\n", "line 1: column '0' has the text 'yes': features must be numbers; or the file lacks a first"),
        (first + first + "no,3,4\n", "line 3: column '0' has the text 'no': features must be numbers\n"),
        (header + first + "1,inf,7\n", "line 3: column 'height' has 'inf': features must be"),
        ("width,height,height,weight\n1,2,3,4\n", "the first row names more than one column 'height'"),
    ):
        Path("new.csv").write_text(text)
        status, out, err = run(capsys, "predict", "net", "new.csv")
        assert (status, out) == (2, "") and f"new.csv: {message}" in err and err.count("\n") == 1
    np.save("new.npy", np.array([[1.0, 500, 7], [1, np.nan, 7]]))
    assert "new.npy: row 1 (counted from 0): column '1' has 'nan'" in run(capsys, "predict", "net", "new.npy")[2]
    run(capsys, *TRAIN, "--data", "prices.csv", "--target", "3", "--epochs", "1", "--save", "values")
    Path("new.csv").write_text("yes,2,3\nno,3,4\n")
    assert run(capsys, "predict", "values", "new.csv")[2].endswith("features must be numbers\n")  # nor had the other a header


def test_names_with_commas_are_quoted(table, capsys):
    run(capsys, *TRAIN, "--data", "flowers.csv", "--target", "kind", "--save", "net")
    _, out, _ = run(capsys, "predict", "net", "flowers.csv", "--target", "kind", "--probabilities")
    assert out.splitlines()[0] == '"lily, white",rose,tulip'
    assert len(out.splitlines()[1].split(",")) == 3 and float(out.splitlines()[1].split(",")[0]) <= 1


def test_many_different_integers_are_refused_as_classes(table, capsys):
    np.savetxt("many.csv", np.c_[np.arange(150) // 2, table[0]], delimiter=",", fmt="%d")
    assert (
        "75 different integers in 150 rows: give --regression" in run(capsys, *TRAIN, "--data", "many.csv", "--target", "0")[2]
    )


def test_texts_of_values_are_refused_as_classes(table, capsys):
    Path("prices in euros.csv").write_text("a,b\n" + "".join(f"{i},{i} EUR\n" for i in range(30)))
    said = run(capsys, *TRAIN, "--data", "prices in euros.csv", "--target", "b")[2]
    assert "has 30 different texts in 30 rows: values must be numbers, not '0 EUR', and classes have more rows" in said


@pytest.mark.parametrize(
    "text, message",
    [
        ("a,b\n1,2\n2,\n3,4\n", "line 3: the target column 'b' has '': fill such cells"),
        ("a,b\n1,2\n2,NA\n3,4\n", "line 3: the target column 'b' has 'NA'"),
        ("a,b\n1,2\n\n\nNA,4\n", "line 5: column 'a' has the text 'NA'"),
        ("a,b\n1,2\n3,4\n\n5,x\n", "line 5: the target column 'b' has 'x'"),
        ("a,b\n1,2\n\n3,nan\n", "line 4: the target column 'b' has 'nan': fill such cells, or leave"),
        ("a,b\n1,2\n3,-inf\n", "line 3: the target column 'b' has '-inf': values must be between -3.4e38 and 3.4e38"),
        ("b,c,a\n1,2,3\n\n1,2,NaN\n", "line 4: column 'a' has 'NaN': fill missing cells, by the median"),
        ("b,c,a\n1,2,3\n1, inf,3\n", "line 3: column 'c' has 'inf': features must be between -3.4e38"),
        ("a,b\n1,2\n1e300,3\n", "line 3: column 'a' has '1e300': features must be between .*, the range of float32"),
        ("a,b,c\n1,2,3\n\n4,5\n", "line 4 has 2 cells, and the first row has 3: write a cell for each column"),
        ("a,b\n1,2\n3,4\n5,6,7\n", "line 4 has 3 cells, and the first row has 2: .* quote cells with commas"),
        ("a,b\n1,2\n3,4\n5\n", "line 4 has 1 cell, and the first row has 2"),
        ('"a\nb",b\n1,2\nit\'s,4\n', r"""line 4: column 'a\\nb' has the text "it's": features"""),
        ("a,b\n1,2\n" + 300 * "x" + ",4\n", "line 3: column 'a' has the text 'xxx"),
        ("a;b\n1;2\n2;3\n", "the first line has no comma, but semicolons: separate cells with commas"),
        ("a\tb\n1\t2\n", "the first line has no comma, but tabs"),
        ("a,b\nr1,1,2\nr2,3,4\n", "the first rows have 2 and 3 cells"),
        ("1,,0\n1,2,0\n", "has an empty cell"),
        ("b,b\n1,2\n3,4\n", "x.csv: the first row names more than one column 'b': name each column differently"),
        ("a,b\n", "x.csv: the file has no rows"),
        ("a,b\n\n", "x.csv: the file has no rows"),
        ("\n\n", "x.csv: the file is empty"),
        ("b\n1\n2\n", "x.csv: there is no column but the target 'b', and so no feature"),
        ("\na,b\n1,2\n\nNA,4\n", "line 5: column 'a' has the text 'NA'"),
    ],
)
def test_what_is_missing_or_shifted_is_refused(text, message, tmp_path):
    (tmp_path / "x.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        own_data.read(str(tmp_path / "x.csv"), "b" if "b" in text else "-1")


@pytest.mark.parametrize(
    "values, target, message",
    [
        (np.float32(3), None, r"a table of numbers \(rows, columns\) expected, got float32 \(\)"),
        (np.ones(3), None, r"expected, got float64 \(3,\)"),
        (np.ones((0, 3)), None, "the file has no rows"),
        (np.ones((0, 3)), "0", "the file has no rows"),
        (np.ones((3, 1)), "0", "no column but the target '0'"),
    ],
)
def test_arrays_without_rows_or_columns_are_refused(values, target, message, tmp_path):
    np.save(tmp_path / "x.npy", values)
    with pytest.raises(ValueError, match=f"x.npy: .*{message}"):
        own_data.read(str(tmp_path / "x.npy"), target)


@pytest.mark.filterwarnings("error")  # such as NumPy's, of four lines
@pytest.mark.parametrize(
    "text", ["a,b\n1,x\n3,y\n\n", "\n\na,b\n1,x\n3,y\n", "a,b\n\n1,x\n\n3,y\n", "\r\na,b\r\n1,x\r\n3,y\r\n\r\n"]
)
def test_empty_lines_are_no_rows(text, tmp_path):
    (tmp_path / "x.csv").write_text(text, newline="")
    found = own_data.read(str(tmp_path / "x.csv"), "b")
    assert found.X.tolist() == [[1], [3]] and found.y.tolist() == ["x", "y"] and found.names == ["a"]


def test_large_numbers_stay_apart():
    assert own_data._typed(np.array(["1e20", "2e20"]), "y").tolist() == [1e20, 2e20]
    large = np.array([2**53 + 1, 2**53])
    assert own_data._typed(large, "y").tolist() == large.tolist()


def test_features_far_from_zero_are_standardised(table, capsys, monkeypatch):
    """Sums of float32, row by row, would lose them."""
    X = 2000 + np.random.default_rng(0).standard_normal((200_000, 1))
    np.save("far.npy", np.c_[X, X > 2000])
    options = cli._parser().parse_args([*TRAIN, "--data", "far.npy", "--target", "1"])
    from numbanet.cli.train import _splits

    splits = _splits(options)
    assert abs(splits.train[0].mean(dtype=float)) < 0.02 and abs(splits.train[0].std(dtype=float) - 1) < 0.02


def written(name, X, targets):
    lines = [",".join([*(f"{value:.6g}" for value in row), str(target)]) for row, target in zip(X, targets)]
    Path(name).write_text("\n".join(["a,b,c,y", *lines]) + "\n")


def test_a_class_of_one_row_is_trained_on(table, capsys):
    written("rare.csv", table[0], ["c" if i == 5 else "ab"[i % 2] for i in range(40)])
    for seed in range(12):
        status, _, err = run(
            capsys, *TRAIN, "--data", "rare.csv", "--target", "y", "--epochs", 1, "--seed", seed, "--save", "net"
        )
        assert status == 0, err
        assert Net.load("net").classes_.tolist() == ["a", "b", "c"]


@pytest.mark.parametrize("count", [4, 6, 10, 14])
def test_two_values_are_held_out_at_least(table, capsys, count):
    written("few.csv", table[0], table[2][:count])
    for options in ((), ("--validation", 0)):
        status, out, err = run(capsys, *TRAIN, "--data", "few.csv", "--target", "y", "--epochs", 1, *options)
        if status:
            assert count == 4 and not options and "--validation: two of 2 rows" in err and "or --validation 0" in err
        else:
            assert "nan" not in out and "error" not in err


def test_classes_with_too_few_rows_for_a_part_are_refused_by_its_option(table, capsys):
    written("few.csv", table[0], "abcd")
    status, _, err = run(capsys, *TRAIN, "--data", "few.csv", "--target", "y", "--epochs", 1)
    assert status == 2 and "--test: each class has too few rows for a share of 0.2: give more rows" in err


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_the_network_is_saved_before_anything_else_is_written(table, capsys, monkeypatch):
    def report(net, path, X, y, data):
        seen.append(net.score(X, y))
        raise ValueError("no report")

    seen = []
    monkeypatch.setattr(Net, "report", report)
    status, out, err = run(
        capsys, *TRAIN, "--data", "flowers.csv", "--target", "kind", "--epochs", 9, "--save", "net", "--report", "r.html"
    )
    assert status == 2 and "no report" in err and "saved: net" in out
    assert seen[0] > 0.5  # of samples as they were in training
    assert Net.load("net").score(table[0].astype(np.float32), np.array(FLOWERS)[table[1]]) > 0.5
