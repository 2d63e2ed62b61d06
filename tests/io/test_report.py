"""Reports: one page that parses, needs nothing else, and says what `history_` says."""

import html.parser
import re
import warnings

import numpy as np
import pytest

import numbanet
from numbanet import (
    Conv2d,
    EarlyDropout,
    Flatten,
    LanguageModel,
    Linear,
    Net,
    NetRegressor,
    Quantile,
    ReLU,
    RowDropout,
    SkewNormalSchedule,
    cli,
)
from numbanet.datasets import load_digits
from numbanet.io import drawings, model_card, report as module_or_function
from tests.browser import CONTRAST, browsed

pytest.importorskip("matplotlib", reason="the extra `plots`")

X, Y, X_TEST, Y_TEST = load_digits()
VOID = {"meta", "br", "img", "input", "link", "hr"}


class Page(html.parser.HTMLParser):
    """The tables, texts and elements of a page; elements that are not closed in order are errors."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tables, self.ids, self.seen, self.text, self.links = [], [], [], [], [], []
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.seen.append(tag)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given[name] for name in ("href", "src", "xlink:href") if name in given]
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in ("td", "th"):
            self.tables[-1][-1][-1] += data
        elif "style" not in self.open:
            self.text.append(data)


def read(path):
    """The page, which must need nothing else."""
    text = path.read_text(encoding="utf-8")
    said = re.sub(r"data:image/png;base64,[A-Za-z0-9+/=\s]+", "", text)  # whose letters mean nothing
    assert said.startswith("<!DOCTYPE html>") and not re.search(r"https?:|//[a-z]|<script|@import", said)
    page = Page(text)
    assert all(link.startswith(("#", "data:image/png;base64,")) for link in page.links)
    assert len(set(page.ids)) == len(page.ids)
    assert {link[1:] for link in page.links if link[0] == "#"} | set(re.findall(r"url\(#([^)]+)\)", text)) <= set(page.ids)
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text and drawings.INK not in text
    return page


@pytest.fixture(scope="module")
def net():
    options = {"dropout": "rdp", "epochs": 4, "batch_size": 64, "random_state": 0, "device": "cpu"}
    return Net((48, 32), **options).fit(X[:400], Y[:400], validation=(X[400:500], Y[400:500]))


@pytest.mark.slow
def test_a_page_says_what_the_fit_was(net, tmp_path):
    net.report(tmp_path / "run.html", X_TEST, Y_TEST)
    page = read(tmp_path / "run.html")
    words = " ".join("".join(page.text).split())
    confusion, history, dropped, parameters = page.tables
    # figures by epoch
    assert history[0] == list(net.history_[0]) and len(history) == 5
    for row, record in zip(history[1:], net.history_, strict=True):
        np.testing.assert_allclose([float(cell) for cell in row], [float(value) for value in record.values()], rtol=1e-5)
    # predictions
    found = np.zeros((10, 10), int)
    np.add.at(found, (Y_TEST, net.predict(X_TEST)), 1)
    np.testing.assert_array_equal([[int(cell) for cell in row[1:]] for row in confusion[1:]], found)
    assert f"accuracy {net.score(X_TEST, Y_TEST):.4f} on 360 samples" in words
    # layers
    assert [row[:4] for row in dropped[1:4]] == [
        ["0", "Linear(64, 48)", "48", "rdp 0.5"],
        ["1", "ReLU()", "48", ""],
        ["2", "Linear(48, 32)", "32", "rdp 0.5"],
    ]
    shares = [float(row[6].rstrip("%")) / 100 for row in dropped[1:] if row[6]]
    assert len(shares) == 3 and all(0 < share < 0.8 for share in shares)
    share = sum(record["flops_share"] for record in net.history_) / 4
    assert f"{share:.1%} of the FLOPs of dense training" in words and f"{1 - share:.0%}of the FLOPs skipped" in words
    assert re.search(r"copies of the network on 360 of these samples took \S+ s with rdp and \S+ s without dropout", words)
    assert ["dropout", "'rdp'"] in parameters and f"numbanet {numbanet.__version__}" in words
    assert page.seen.count("svg") == 3


def test_why_dropout_was_chosen_is_said_once(tmp_path):
    net = Net((48,), dropout="auto", epochs=3, random_state=0).fit(X[:200], Y[:200])
    net.report(tmp_path / "run.html")
    page, why = read(tmp_path / "run.html"), net.history_[0]["dropout"]
    assert "".join(page.text).count(f"dropout: {why}") == 1 and len(page.tables[0]) == 4
    assert "dropout" not in page.tables[0][0] and "dropout_rate" in page.tables[0][0]


@pytest.mark.parametrize("stops", [True, False])
def test_figures_are_those_of_the_weights_that_are_kept(stops, tmp_path):
    options = {"epochs": 6, "learning_rate": 0.3, "random_state": 0, "device": "cpu", "dropout": "none"}
    net = Net((32,), early_stopping=stops, **options).fit(X[:200], Y[:200], validation=(X[200:260], Y[200:260]))
    net.history_[1]["validation_score"], net.best_epoch_ = 0.9876, 2  # as if the second epoch had been the best
    kept = net.history_[1 if stops else -1]
    net.report(tmp_path / "run.html")
    words = " ".join("".join(read(tmp_path / "run.html").text).split())
    said = "best epoch, whose weights and figures these are" if stops else "best epoch; these are the last one's"
    assert f"{kept['validation_score']:.4g}validation accuracy" in words and f"2{said}" in words
    assert model_card(net).count(f"{kept['validation_score']:.4g}") >= 1


def test_the_share_of_a_layers_flops_is_the_mean_over_plans(net, tmp_path):
    """With windows of fixed size it is known."""
    policy = RowDropout(0.5)
    fitted = Net((64, 64), dropout=policy, epochs=1, random_state=0, device="cpu").fit(X[:200], Y[:200])
    fitted.report(tmp_path / "run.html")
    *_, dropped, _ = read(tmp_path / "run.html").tables
    first = float(dropped[1][6].rstrip("%")) / 100
    model = fitted.model_
    rng = np.random.default_rng(1)
    kept = [policy.plans(model, rng).get("0.output") for _ in range(200)]
    expected = np.mean([1.0 if plan is None else plan.density for plan in kept])
    assert abs(first - expected) < 0.1


def test_pages_without_dropout_or_samples(tmp_path):
    NetRegressor((8,), epochs=1).fit(X[:50], Y[:50]).report(tmp_path / "run.html")
    page = read(tmp_path / "run.html")
    assert "given samples" not in "".join(page.text) and "by the data" not in "".join(page.text)
    assert {row[6] for row in page.tables[1][1:]} == {"100%", ""}


@pytest.mark.slow
def test_a_page_names_the_data_and_what_a_constant_prediction_reaches(net, tmp_path):
    def words(fitted, *given):
        fitted.report(tmp_path / "run.html", *given)
        return " ".join("".join(read(tmp_path / "run.html").text).split())

    first = Y_TEST == 1
    X_many, y_many = np.concatenate([X_TEST[first], X_TEST[:40]]), np.concatenate([Y_TEST[first], Y_TEST[:40]])
    said = words(net, X_many, y_many, "digits.csv, target column <digit>")
    assert "Data: digits.csv, target column <digit>. Shape of a sample: " in said
    assert f"always predicting the most frequent class, 1, has {np.mean(y_many == 1):.4f}" in said
    for loss, constant in (("squared_error", "the mean"), ("absolute_error", "the median")):
        fitted = NetRegressor((8,), loss=loss, epochs=1, device="cpu").fit(X[:90], Y[:90])
        said = words(fitted, X_TEST, Y_TEST)
        assert f"on 360 samples; always predicting {constant} of their targets has 0" in said and "Data:" not in said
    assert "always predicting" not in words(NetRegressor((8,), loss=abs_loss, epochs=1).fit(X[:90], Y[:90]), X_TEST, Y_TEST)


@pytest.mark.filterwarnings("ignore:fit. the network")
@pytest.mark.parametrize("loss", ["squared_error", "absolute_error", "huber", Quantile(0.9)], ids=str)
def test_the_constant_of_a_loss_has_a_score_of_0(loss, tmp_path):
    """The score of the samples is by the same loss as in `history_`."""
    validation = X_TEST, np.exp(Y_TEST / 2.0)
    net = NetRegressor((16,), loss=loss, epochs=3, random_state=0).fit(X[:200], np.exp(Y[:200] / 2.0), validation=validation)
    net.report(tmp_path / "run.html", *validation)
    said = re.search(r"(?:R²|score) (-?\d\.\d{4}) on 360 samples", " ".join("".join(read(tmp_path / "run.html").text).split()))
    assert float(said[1]) == pytest.approx(net.history_[-1]["validation_score"], abs=1e-4)


def abs_loss(output, target):
    return (output - target).abs().mean(axis=1)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:fit. the network")
def test_pages_of_all_kinds(tmp_path, rng):
    names = np.array(["<b>&\"'", "yes"])
    odd = Net((8,), dropout="bernoulli", epochs=2).fit(X, names[Y % 2])
    odd.report(tmp_path / "odd.html", X_TEST, names[Y_TEST % 2])
    assert read(tmp_path / "odd.html").tables[0][0] == ["", "<b>&\"'", "yes"]
    odd.report(tmp_path / "odd.html", X_TEST, np.array(["<b>&\"'", "new"])[Y_TEST % 2])
    assert [row[-1] for row in read(tmp_path / "odd.html").tables[0]][0] == "yes"
    odd.save(tmp_path / "odd")
    Net.load(tmp_path / "odd").report(tmp_path / "loaded.html", X_TEST, names[Y_TEST % 2])
    assert len(read(tmp_path / "loaded.html").tables[1]) == 3
    many = rng.integers(0, 30, len(X))
    Net((8,), epochs=1).fit(X, many).report(tmp_path / "many.html", X[:99], many[:99])
    assert read(tmp_path / "many.html").seen.count("image") == 2  # the matrix, and the scale of its colours
    NetRegressor((8,), epochs=1).fit(X, Y).report(tmp_path / "number.html", X_TEST, Y_TEST)
    assert read(tmp_path / "number.html").seen.count("svg") == 4
    NetRegressor((8,), epochs=1).fit(X, np.c_[Y, Y]).report(tmp_path / "numbers.html", X_TEST, np.c_[Y_TEST, Y_TEST])
    labels = rng.integers(0, 2, (len(X), 3))
    Net((8,), epochs=1).fit(X, labels).report(tmp_path / "labels.html", X[:50], labels[:50])
    images = Net("lenet5", image_shape=(1, 12, 12), dropout="rsdp", epochs=1).fit(rng.random((60, 144)), np.arange(60) % 2)
    images.report(tmp_path / "images.html")
    assert [row[6] for row in read(tmp_path / "images.html").tables[1][1:]].count("by the data") == 2
    words = "the cat sat on the mat and the dog sat on the rug".split() * 9
    model = LanguageModel((8,), dropout="rdp", epochs=2, steps=5, batch_size=2).fit(words, validation=words[:40])
    model.report(tmp_path / "text.html", words)
    assert f"perplexity {model.perplexity(words):.4g}" in " ".join("".join(read(tmp_path / "text.html").text).split())
    for name in ("numbers", "labels"):
        read(tmp_path / f"{name}.html")


@pytest.mark.filterwarnings("ignore:fit. the network")
@pytest.mark.parametrize("rate", [EarlyDropout(0.5), SkewNormalSchedule(0.3, 3), lambda epoch: (0.5, 0.25, 0.125)[epoch]])
@pytest.mark.parametrize("dropout", ["window", "rsdp"])
def test_rates_that_depend_on_the_epoch_are_those_of_the_last_one(rate, dropout, tmp_path):
    layers = (48, 32) if dropout == "window" else [Conv2d(1, 4, 3), ReLU(), Flatten(), Linear(144, 10)]
    shape = (-1, 64) if dropout == "window" else (-1, 1, 8, 8)
    net = Net(layers, dropout=dropout, dropout_rate=rate, epochs=3, random_state=0, device="cpu").fit(X.reshape(shape), Y)
    net.report(tmp_path / "run.html", X_TEST.reshape(shape), Y_TEST)
    page = read(tmp_path / "run.html")
    last, expected = net.policy_.at(2).rate, page.tables[2][1][3]
    assert expected == (f"{dropout} {last:.3g}" if last else "")
    assert "Rates differ between epochs; these are those of the last one, 3." in " ".join("".join(page.text).split())
    if not isinstance(rate, (EarlyDropout, SkewNormalSchedule)):
        return
    net.save(tmp_path / "net")
    Net.load(tmp_path / "net").report(tmp_path / "again.html")
    assert read(tmp_path / "again.html").tables[1] == page.tables[2]


def test_rates_of_recurrent_inputs_may_depend_on_the_epoch(tmp_path):
    words = "the cat sat on the mat and the dog sat on the rug".split() * 9
    policies = {"dropout": "rdp", "dropout_rate": EarlyDropout(0.4), "recurrent_dropout": RowDropout(lambda epoch: 0.25)}
    model = LanguageModel((8,), **policies, epochs=2, steps=5, batch_size=2, random_state=0).fit(words)
    model.report(tmp_path / "text.html")
    assert "rdp 0.25" in [row[3] for row in read(tmp_path / "text.html").tables[1]]


def test_what_is_refused_leaves_the_file_alone(net, tmp_path):
    target = tmp_path / "run.html"
    target.write_text("before")
    for call, error, message in (
        (lambda: net.report(target, X_TEST), TypeError, "give X and y"),
        (lambda: net.report(target, X_TEST[:, :9], Y_TEST), ValueError, "9 features"),
        (lambda: Net().report(target), ValueError, "not fitted"),
        (lambda: net.report(tmp_path / "no" / "run.html"), FileNotFoundError, "no folder"),
        (lambda: net.report(tmp_path), IsADirectoryError, "it is a folder"),
        (lambda: net.report(tmp_path / "run.txt"), ValueError, "must end in .html or .htm"),
    ):
        with pytest.raises(error, match=message):
            call()
    assert target.read_text() == "before" and [*tmp_path.iterdir()] == [target]


def test_without_matplotlib_it_says_what_to_install(net, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install 'numbanet\[plots\]'"):
        module_or_function(net, tmp_path / "run.html")


def test_the_command_writes_a_report(tmp_path, capsys):
    path = tmp_path / "run.html"
    with warnings.catch_warnings():
        status = cli.main(["train", "--layers", "16", "--epochs", "2", "--quiet", "--report", str(path)])
    out = capsys.readouterr().out
    page = read(path)
    accuracy = re.search(r"accuracy (0\.\d{4}) on 360 samples", " ".join("".join(page.text).split()))
    assert status == 0 and f"report: {path}" in out and f"{float(accuracy[1]):.2%}" in out
    assert "Data: digits, of which the given samples are the test set." in "".join(page.text)
    table = tmp_path / "table.csv"
    table.write_text("\n".join(["a,b,kind", *(f"{i},{i % 7},{'ab'[i % 2]}" for i in range(60))]))
    given = ["--data", str(table), "--target", "kind", "--layers", "8", "--epochs", "1", "--quiet", "--report", str(path)]
    assert cli.main(["train", *given]) == 0 and capsys.readouterr()
    words = " ".join("".join(read(path).text).split())
    assert f"Data: {table}, target column kind, of which" in words and "always predicting the most frequent class, " in words
    assert cli.main(["train", "--report", str(tmp_path / "no" / "run.html")]) == 2
    assert "no folder" in capsys.readouterr().err


LOOK = (
    CONTRAST
    + """
async function look(page) {
  found[page] = [];
  for (const width of [400, 1200]) {
    const frame = await opened(page, width), shown = frame.contentDocument, root = shown.documentElement;
    const sideways = root.scrollWidth - root.clientWidth, drawn = shown.querySelectorAll("svg").length;
    found[page].push({sideways, drawn, ...faint(shown)});
    frame.remove();
  }
}
"""
)


@pytest.mark.long
@pytest.mark.slow
def test_a_browser_shows_it_on_narrow_and_wide_screens(net, tmp_path):
    """Nothing scrolls sideways, all pictures are there, and texts have the contrast of WCAG AA."""
    net.report(tmp_path / "run.html", X_TEST, Y_TEST)
    for seen in browsed(tmp_path, LOOK, ["run.html"], tmp_path / "profile")["run.html"]:
        assert seen["sideways"] <= 0 and seen["drawn"] >= 2 and seen["pale"] == {} and seen["count"] > 50
