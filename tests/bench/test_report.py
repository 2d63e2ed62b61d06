"""Reports: pages and charts are made from recorded files, and those of the repository are up to date; facts of the pages."""

import inspect
import math
import re
from pathlib import Path

import pytest

import numbanet
import numbanet.dropout
from bench.machinery import drawings, report, suites
from bench.machinery.results import Results
from numbanet import Net
from numbanet.estimators.parameters import SHARED

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]  # for users
ROW = {
    "suite": "gemm",
    "case": "a|b",
    "implementation": "numbanet",
    "peer": "torch",
    "median_ms": 2.0,
    "p10": 1.0,
    "p90": 3.0,
    "ratio": 1.5,
    "ratio_p10": 1.4,
    "ratio_p90": 1.6,
    "ceiling": 2.0,
    "error": 1e-6,
    "flops": 4e6,
    "problem": None,
}


@pytest.fixture
def results(tmp_path):
    found = Results(tmp_path / "results" / "cpu.json", device="cpu", quick=False)
    found.add([ROW])
    return found


# --- how pages are made -----------------------------------------------------------------------------------------------
def test_marked_tables_are_rewritten_and_nothing_else(results, tmp_path):
    quick = Results(tmp_path / "results" / "quick.json", device="cpu", quick=True)
    quick.add([{**ROW, "case": "from a quick run"}])
    page, plain = tmp_path / "README.md", tmp_path / "plain.md"
    page.write_text("before\n<!-- bench:gemm -->\nold\n<!-- /bench:gemm -->\nafter\n<!-- bench:mlp -->\n<!-- /bench:mlp -->\n")
    plain.write_text("no markers\n")
    pages = [page, plain, tmp_path / "missing.md"]
    assert report.report(pages, tmp_path / "results") == [page]
    text = page.read_text()
    assert "| 2 (1 – 3) | 2.0 GFLOP/s | torch | 1.50 (1.40 – 1.60) | 2.00 | 1.0e-06 |" in text and "a\\|b" in text
    assert text.startswith("before\n") and "\nafter\n" in text and "old" not in text and "quick" not in text
    assert "No results recorded yet" in text and results.facts["machine"]["cpu"] in text
    page.write_text(text.replace("<!-- bench:gemm -->", "<!-- bench:gemm ^b$ -->"))
    results.add([{**ROW, "case": "b"}])
    assert report.report(pages, tmp_path / "results") == [page]
    assert "| b |" in page.read_text() and "a\\|b" not in page.read_text()
    page.write_text(text.replace("<!-- bench:gemm -->", "<!-- bench:gemm b: torch$ -->"))
    assert report.report(pages, tmp_path / "results") == [page] and "| b |" not in page.read_text()
    page.write_text(text.replace("<!-- bench:gemm -->", "<!-- bench:gemm ^b: numbanet$ -->"))
    assert report.report(pages, tmp_path / "results") == [page] and "| b |" in page.read_text()
    assert report.report(pages, tmp_path / "results") == [] and plain.read_text() == "no markers\n"


def test_a_section_without_results_is_left_out_until_there_are_some(results):
    empty = "<!-- bench:loss ## Kernels: losses -->\n<!-- /bench:loss -->\n"
    record = {**results.facts, "rows": results.rows}
    assert report.rewrite(empty, [record]) == empty
    filled = report.rewrite(empty, [{**record, "rows": [{**ROW, "suite": "loss"}]}])
    assert "-->\n\n## Kernels: losses\n\n_cpu: " in filled and "1.50 (1.40 – 1.60)" in filled
    assert report.rewrite(filled, [record]) == empty
    some = filled.replace("loss ##", "loss ^c$ ##")
    assert report.rewrite(some, [record]) == empty.replace("loss ##", "loss ^c$ ##")


def test_parameters_that_differ_from_another_estimators_are_listed():
    rows = report.parameters("NetRegressor", "Net", []).splitlines()[2:]
    differ = {"output_init", "output_bias", "optimizer", "learning_rate", "loss", "class_weight"}
    assert {row.split("`")[1] for row in rows} == differ


def test_cases_in_which_a_kind_is_behind_conventional_dropout_are_listed():
    scores = {"bernoulli p=0.5": 0.9, "rdp p=0.5": 0.88, "window p=0.5": 0.893, "numbanet": 0.5, "rdp p=0.3": 0.1}
    row = {"suite": "tables", "case": "a, b, equal"}
    rows = [{**row, "implementation": name, "score": score} for name, score in scores.items()]
    page = "<!-- behind:tables , equal$ -->\n<!-- /behind:tables -->\n"
    found = report.rewrite(page, [{"date": "2026", "rows": [*rows, {**rows[0], "case": "a, b, defaults", "score": 1.0}]}])
    assert '\n* `"rdp"`: a, b (-0.020).\n* `"window"`: none.\n' in found


def test_ratios_of_all_suites_stand_in_one_table(results):
    facts = results.facts
    older = [{**ROW, "ratio": 9.0}, {**ROW, "suite": "mlp", "implementation": "rdp", "ratio": 3.0, "ceiling": None}]
    records = [
        {**facts, "date": "2", "machine": {"cpu": "new"}, "rows": [ROW, {**ROW, "ratio": None}]},
        {**facts, "date": "1", "machine": {"cpu": "new"}, "rows": older},
        {**facts, "date": "0", "machine": {"cpu": "old"}, "rows": older[:1]},
    ]
    head, _, *lines = report.ratios("any", r"^gemm a\|b: |: rdp$", records).splitlines()
    assert head == "| training step | dropout | speed-up over | on old, 0 | on new, 1 to 2 | FLOPs ratio |"
    assert lines == [
        "| a\\|b | numbanet | torch | **9.00** (1.40 – 1.60) | **1.50** (1.40 – 1.60) | 2.00 |",
        "| a\\|b | rdp | torch |  | **3.00** (1.40 – 1.60) |  |",
    ]
    assert report.ratios("any", "no such case", records) == ""


def test_all_processors_of_the_runs_of_a_file_are_named(results):
    """Those of runs that only chose a learning rate are not."""
    own = f"{results.facts['machine']['cpu']}, 2 threads"
    runs = [{"processor": name, "settings": {}} for name in (own, "old, 4 threads", own)]
    runs.append({"processor": "other", "settings": {"held": 0.1, "choosing_seeds": 1}})
    record = {**results.facts, "runs": runs}
    both = "; on ".join(sorted([own, "old, 4 threads"]))
    assert " ".join(report.caption(record).split()).startswith(f"_cpu: runs of the file on {both}; last command; Python")
    whole = " ".join(report.caption(record).split())
    assert whole.endswith(f"commit {(results.facts['commit'] or 'unknown')[:12]}, {results.facts['date'][:10]}_")
    for run, day in zip(runs, ("02", "01", "03", "04")):
        run.update(date=f"2026-01-{day}T10:00", commit=day * 20)
    whole = " ".join(report.caption(record).split())
    assert whole.endswith("; 3 commits from 010101010101 to 030303030303, 2026-01-01 to 2026-01-03_")
    for few in (runs[:1], runs[2:]):
        assert "runs of" not in report.caption({**record, "runs": few})
    row = {
        **ROW,
        "suite": "time-to-accuracy",
        "case": "a, 784-8-8-10, 2 epochs",
        "timed": 3,
        "accuracy": 0.75,
        "to_target": 1.0,
    }
    record["rows"] = [{**row, "implementation": kind} for kind in ("none", "window")]
    assert "; 2 processors, each case on one; " in drawings.charts([record])["accuracy.svg"]


def test_results_with_mkl_have_a_table_of_their_own(results):
    """They are no figure, and in no chart, of those who have NumPy's library."""
    by_mkl = {
        **results.facts,
        "date": "2",
        "machine": {"cpu": "new", "threads": 2, "blas": "MKL 2026"},
        "rows": [{**ROW, "ratio": 9.0}],
    }
    records = [{**by_mkl, "date": "1", "machine": {"cpu": "new", "threads": 2, "blas": "openblas"}, "rows": [ROW]}, by_mkl]
    assert "| on new, 1 |" in report.ratios("steps", "gemm", records) and "9.00" not in report.ratios("steps", "gemm", records)
    assert "| on new, 2 |" in report.ratios("mkl", "gemm", records) and "1.50" not in report.ratios("mkl", "gemm", records)
    assert report.value("ratio", "gemm", "numbanet", records) == "1.5"
    for record in records:
        case = {"suite": "mlp", "case": "784-8-8-10 p=0.5", "implementation": "rdp"}
        record["rows"] = [{**row, **case} for row in record["rows"]]
    assert ">9.0<" not in drawings.charts(records)["speed.svg"]
    assert report.by_library([{**by_mkl, "device": "cuda"}])


def test_the_chart_has_a_bar_for_each_kind_width_and_rate(results):
    rows = [
        {**ROW, "suite": "mlp", "case": f"784-{width}-{width}-10 p={rate}", "implementation": kind, "ratio": 1.25}
        for width in (8, 16)
        for rate in (0.3, 0.5)
        for kind in ("bernoulli", "rdp", "tdp")
    ]
    record = {**results.facts, "rows": [*rows, {**rows[0], "case": "784-8-8-10, batch 20 p=0.5"}]}
    (chart,) = drawings.charts([{**record, "rows": rows[:3]}, record]).values()
    assert chart.count(">1.2<") == len(rows) and chart.count("H = ") == 4 and results.facts["date"][:10] in chart
    assert drawings.charts([{**record, "rows": []}]) == {}


def test_a_dot_for_each_kind_that_reached_the_target(results):
    """In the first three quarters of the epochs: hollow. A case without times of training without dropout is not drawn."""
    shared = {**ROW, "suite": "time-to-accuracy", "case": "digits, 784-8-8-10, 2 epochs", "timed": 3, "accuracy": 0.75}
    rows = [
        {**shared, "implementation": kind, "to_target": target}
        for kind, target in (("none", 0.5), ("bernoulli", None), ("window", 0.25), ("window early", 1.25), ("tdp", 0.1))
    ]
    chart = drawings.charts([{**results.facts, "rows": rows}])["accuracy.svg"]
    circle = re.compile(r'<circle cx="([\d.]+)" cy="[\d.]+" r="5" fill="([^"]+)"')
    legend, dots = map(circle.findall, chart.split("0.5<", 1))
    assert len(legend) == len(drawings.DOTS) + 1
    assert [fill for _, fill in dots] == [drawings.DOTS["none"], drawings.DOTS["window"], "white"]
    none, window, early = (float(across) for across, _ in dots)
    assert none - window == pytest.approx((early - window) / 4, abs=0.2)
    assert chart.count(">75.0 %<") == 3 and chart.count("×") == 2  # in the legend, and conventional dropout
    assert "accuracy.svg" not in drawings.charts([{**results.facts, "rows": rows[1:]}])


def test_a_line_for_each_library_by_width(results):
    """Ours is the median over the peers of a fit's time divided by its steps; a peer's is ours times the ratio beside it."""
    rows = [
        {
            **ROW,
            "suite": "small",
            "case": f"64-{w}-{w}-2, batch 128, adam, 4 steps, against {peer}",
            "implementation": "none",
            "peer": peer,
            "median_ms": milliseconds,
            "ratio": ratio,
        }
        for w in (16, 64)
        for peer, milliseconds, ratio in (("torch", 1.0, 2.0), ("jax", 9.0, 0.5), ("other", 2.0, 1.0))
    ]
    record = {**results.facts, "rows": [*rows, {**rows[0], "implementation": "torch", "peer": None, "ratio": None}]}
    chart = drawings.charts([record])["width.svg"]
    assert "width.svg" not in drawings.charts([{**record, "rows": rows[:3]}])  # one width is no line
    ours, theirs = (
        [float(down) for down in re.findall(rf'cy="([\d.]+)" r="\d" fill="{drawings.COLOURS[name]}"', chart)]
        for name in ("none", "torch")
    )
    assert len(ours) == len(theirs) == 2 and len(set(ours + theirs)) == 2 and ours[0] > theirs[0]
    assert 240 * math.log10(2) == pytest.approx(ours[0] - theirs[0], abs=0.1)
    assert "numbanet" in chart and "H = 64" in chart and "scikit-learn" not in chart


def test_a_value_within_a_line_is_that_of_the_newest_row(results):
    """And of one row only; marks are not at the beginning of a line, where Markdown would end the paragraph."""
    records = [
        {**results.facts, "date": "2", "rows": [{**ROW, "ratio": None}, {**ROW, "case": "c", "ratio": 4.25}]},
        {**results.facts, "date": "1", "rows": [ROW]},
    ]
    text = (
        "it is <!-- value:ratio gemm ^{}: numbanet$ -->9<!-- /value --> times, <!-- value:ratio gemm ^c: -->8<!-- /value -->."
    )
    made = report.rewrite(text.format(r"a\|b"), records)
    assert re.sub("<!-- .*? -->", "", made) == "it is 1.5 times, 4.2." and report.rewrite(made, records) == made
    with pytest.raises(ValueError, match="value:ratio: no row of gemm matches '\\^b: numbanet\\$'"):
        report.rewrite(text.format("b"), records)
    with pytest.raises(ValueError, match="value:ceiling: several rows of gemm match '.'"):
        report.rewrite("a <!-- value:ceiling gemm . --><!-- /value -->", records)
    assert [page.name for page in report.PAGES if re.search(r"^ *<!-- value:", page.read_text("utf-8"), re.M)] == []


def test_results_without_a_mark_of_their_own_have_a_section(results):
    """A suite has its own where a mark says its name, or a name that begins with it and with no longer one of a suite."""
    facts, mark = results.facts, "<!-- sections:others -->\n<!-- /sections:others -->"
    names = ("loss", "mlp-small", "mlp-settings", "mlp-settings-points")
    records = [{**facts, "rows": [{**ROW, "suite": name} for name in names]}]
    text = report.rewrite(f"<!-- bench:mlp-settings-points ## Points -->\n<!-- /bench:mlp-settings-points -->\n{mark}", records)
    assert text.count("## `") == 2 and all(f"## `{name}`\n\n{suites.suites()[name]}\n\n_cpu: " in text for name in names[:2])
    assert report.rewrite(text, records) == text
    assert report.rewrite(f"<!-- bench:loss -->\n<!-- /bench:loss -->\n{mark}", records).count("## `") == 2
    assert report.rewrite(mark, []) == mark


def test_the_recorded_files_are_those_of_the_commands_that_are_told():
    """Each command writes a file of results that is there, and has rows of its suite."""
    for suite in suites.files():
        for command in suites.recorded(suite):
            name = command.split("--json ")[1].split()[0]
            record = report.load(ROOT / name)
            assert {row["suite"] for row in record["rows"]} >= {suite} and not record["quick"], name
            assert ("--against torch" in command) == (record["against"] == "torch"), name


# --- what the repository holds ----------------------------------------------------------------------------------------
def test_the_pages_and_charts_are_those_of_the_recorded_files(tmp_path):
    records = [report.load(path) for path in sorted(report.FOLDER.glob("*.json"))]
    records = [record for record in records if not record.get("quick")]
    for page in report.PAGES:
        text = page.read_text(encoding="utf-8")
        assert report.rewrite(text, records) == text, f"{page.name}: run `python -m bench report`"
    for name, text in drawings.charts(records).items():
        assert (report.FOLDER / name).read_text(encoding="utf-8") == text, f"{name}: run `python -m bench report`"
    drawn = (ROOT / "bench" / "step.svg").read_text(encoding="utf-8")
    assert drawn == drawings.step(), "run `python -m bench.machinery.drawings`"


def test_every_parameter_of_net_is_in_the_documentation():
    page = (ROOT / "docs" / "parameters.md").read_text(encoding="utf-8")
    lines = report.parameters("Net", "", []).splitlines()[2:]
    named = [line.split("`")[1] for line in lines]
    assert sorted(named) == sorted(Net().get_params()) and set(SHARED) < set(named)
    for line in lines:
        cells = line.removeprefix("| ").removesuffix(" |").replace("\\|", "/").split(" | ")
        cells = line.removeprefix("| ").removesuffix(" |").replace("\\|", "/").split(" | ")
        name, _, default, said, _ = (cell.strip() for cell in cells)
        given = Net().get_params()[name.strip("`")]
        assert default.split(", for")[0].replace('"', "'") == repr(given) and len(said) > 15
        assert line in page


def test_the_documentation_says_what_none_means():
    """For each parameter that may be None, a sentence "None: …" of its docstring, which the table of `Net` shows."""
    for kind in (numbanet.Net, numbanet.NetRegressor, numbanet.LanguageModel):
        text = inspect.cleandoc(kind.__doc__).split("\nAttributes\n")[0]
        found = re.findall(r"^(\w+) : (.+)\n((?:    .*\n?)+)", text, re.M)
        assert len(found) > 20
        for parameter, values, said in found:
            assert ("None" in values) <= bool(re.search(r"\bNone( or -1)?: ", " ".join(said.split()))), (kind, parameter)
    rows = [line.split(" | ") for line in report.parameters("Net", "", []).splitlines()[2:]]
    assert all(bool(row[-1].strip(" |")) == ("None" in row[1]) for row in rows)


def test_every_kind_of_dropout_has_its_formulas():
    """Kept part, y, dx, dW and scale, from the docstring of the class of the policy."""
    rows = [line.strip("| ").split(" | ") for line in report.formulas("all", "", []).splitlines()[2:]]
    assert [row[0] for row in rows] == [f'`"{kind}"`' for kind in numbanet.dropout.POLICIES]
    for kind, _, result, dx, dw, scale in rows:
        policy = numbanet.dropout.POLICIES[kind.strip('`"')]
        assert result[1] == "y" and dx[1:3] in ("dx", "dA") and dw[1:3] == "dW" and scale[1:4] == "s ="
        said = " ".join(inspect.getdoc(policy).replace("`", "").split())
        assert all(cell.strip("`") in said for cell in (result, dx, dw, scale))


def test_the_evenings_path_has_the_lines_that_it_says():
    found = re.findall(r"^\| `(numbanet\S+\.py)` \| (\d+) \|", README, re.M)
    assert len(found) >= 6
    for name, said in found:
        lines = len((ROOT / name).read_text(encoding="utf-8").splitlines())
        assert abs(lines - int(said)) <= 0.1 * lines, f"{name} has {lines} lines, the README says {said}"
    assert 1400 <= sum(int(said) for _, said in found) <= 1600


def test_what_the_pages_name_exists():
    text = "\n".join(page.read_text(encoding="utf-8") for page in PAGES)
    named = set(re.findall(r"`((?:numbanet|numbanet_kernels|bench|examples|tests)/[\w/.]*)`", text))
    named |= {f"examples/{name}" for name in re.findall(r"^\| `(\d\d_\w+\.py)` \|", text, re.M)}
    assert len(named) > 20 and [name for name in sorted(named) if not (ROOT / name).exists()] == []
    assert {path.name for path in (ROOT / "examples").glob("[0-9]*.py")} <= {Path(name).name for name in named}
    drawing = re.search(r"┌─ numbanet ─.*?┘", text, re.S)[0]
    assert len({len(line.strip()) for line in drawing.splitlines()}) == 1
    upper, lower = drawing.split("├─")
    for package, drawn in (("numbanet", upper), ("numbanet_kernels", lower)):
        rooms = {path.parent.name for path in (ROOT / package).glob("*/__init__.py")}
        assert {name for name in re.findall(r"(\w+)/", drawn)} == rooms


def test_the_readme_is_short():
    assert len(README.splitlines()) <= 200 and README.count("![") <= 3
    tables = re.findall(r"^\|[ -]+\|[ |-]+$", README, re.M)
    assert len(tables) <= 2 and README.count("\n|") <= 25
    assert README.index("```python") < README.index("![") and README.index('"rdp"`, row patterns') < README.index("![")


def anchors(page):
    """The names by which headings of a page are linked, as GitHub and MyST make them."""
    text = page.read_text(encoding="utf-8")
    if included := re.search(r"^```{include} (\S+)\n(?!:start)", text, re.M):
        text = (page.parent / included[1]).read_text(encoding="utf-8")
    text = re.sub(r"^```.*?^```$", "", text, flags=re.S | re.M)
    return {re.sub(r"[^\w -]", "", line.lower()).replace(" ", "-") for line in re.findall(r"^#+ (.+)$", text, re.M)}


def broken(page):
    """The links and pictures of a page that lead nowhere; not those to other hosts and to pages that the site makes."""
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = target.partition("#")
        if re.match(r"https?:", target) or path.startswith(("walkthroughs/", "reference/")):
            continue
        other = page.parent / path if path else page
        if not other.exists() or anchor and other.suffix == ".md" and anchor not in anchors(other):
            yield target


@pytest.mark.parametrize("page", [*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "bench" / "README.md"], ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    assert list(broken(page)) == []


def test_broken_links_are_found(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# A heading: one\n[a](page.md#a-heading-one) [b](#b) ![c](c.png) [d](page.md#d) [e](https://e.org)\n")
    assert list(broken(page)) == ["#b", "c.png", "page.md#d"]
