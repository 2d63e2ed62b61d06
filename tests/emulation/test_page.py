"""The page of counters: it needs nothing else, has each line of the source as it is, and beside it the counters."""

import html.parser
import inspect
import re
import textwrap

import numpy as np
import pytest

import numbanet
from numbanet.emulation import SHEETS, page as pages
from numbanet_kernels import card as emulated_card
from tests.browser import browsed
from tests.emulation import kernels
from tests.emulation.kernels import F, cuda

pytestmark = pytest.mark.skipif(emulated_card.problem() is not None, reason=str(emulated_card.problem()))


class Page(html.parser.HTMLParser):
    """The rows of all tables, as (number, source, {name: (value, share)}), remarks, ids, links and elements."""

    def __init__(self, text):
        super().__init__()
        self.rows, self.remarks, self.ids, self.links, self.seen, self.regions = [], [], [], [], [], []
        self.into = None
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attributes):
        given = dict(attributes)
        self.seen.append(tag)
        self.ids += [given["id"]] if "id" in given else []
        self.links += [given[name] for name in ("href", "src") if name in given]
        if given.get("role") == "region":
            self.regions.append((given["aria-label"], given["tabindex"]))
        if tag == "tr":
            self.rows.append(["", "", {}])
            if given.get("class") == "remark":
                self.remarks.append("")
                self.into = "remark"
        elif tag in ("td", "th"):
            kind = given.get("class", "")
            share = float(given["style"].partition(":")[2]) if "style" in given else None
            if kind in ("number", "code"):
                self.into = kind
                if kind == "code":
                    self.rows[-1][2]["source"] = ("", share)
            elif "data-name" in given:
                self.into = given["data-name"]
                self.rows[-1][2][self.into] = ("", share)

    def handle_endtag(self, tag):
        if tag in ("td", "th"):
            self.into = None

    def handle_data(self, data):
        if self.into == "remark":
            self.remarks[-1] += data
        elif self.into in ("number", "code"):
            self.rows[-1][self.into == "code"] += data
        elif self.into is not None:
            value, share = self.rows[-1][2][self.into]
            self.rows[-1][2][self.into] = value + data, share


def read(text):
    """The page, which must need nothing else, and whose ids are of one element each."""
    assert text.startswith("<!DOCTYPE html>") and not re.search(r"https?:|//[a-z]|<script|@import|url\(", text)
    found = Page(text)
    assert len(set(found.ids)) == len(found.ids) and {f"#{name}" for name in found.ids} >= set(found.links)
    assert "prefers-color-scheme: dark" in text and 'name="viewport"' in text and '<html lang="en">' in text
    assert all(label and tab == "0" for label, tab in found.regions)  # what scrolls can be reached by keys
    return found


def odd(x, y):
    i = cuda.grid(1)

    if 0 < i < y.size and y.size > 3:  # <b>"&amp;" & 'quotes'</b>
        y[i] = x[32 * i]  # <script>alert(1)</script>


@pytest.fixture(scope="module")
def counters():
    with numbanet.emulated(counters=True) as card:
        cuda.jit(odd)[4, 256](np.ones(32 * 1024, F), np.zeros(1024, F))
        made = kernels.column(32)
        cuda.jit(made)[1, 32](np.ones((32, 32), F), np.zeros(32, F))
        cuda.jit(kernels.by_threads)[4, 256](np.ones(1024, F), np.zeros(1024, F))
    return card.counters


def test_each_line_of_the_source_with_its_counters(counters, tmp_path):
    path = counters.html(tmp_path / "lines.html")
    assert path == tmp_path / "lines.html" and oct(path.stat().st_mode)[-3:] != "600"  # others may read it as any file
    found = read(path.read_text(encoding="utf-8"))
    rows = {int(row[0]): row for row in found.rows if row[0].isdecimal()}
    source, first = inspect.getsourcelines(odd)
    assert [rows[first + k][1] for k in range(len(source))] == [line.rstrip("\n") for line in source]
    inner, first = inspect.getsourcelines(kernels.column(32))
    assert inner[0].startswith("    def ") and rows[first][1].startswith("def ")  # moved to the left as a whole
    assert [rows[first + k][1] for k in range(len(inner))] == textwrap.dedent("".join(inner)).splitlines()
    kernel, total = counters[0], counters[0].total
    for line in kernel.lines:
        _, _, cells = rows[int(line.place.rpartition(":")[2])]
        assert cells["instructions"] == (f"{line.issued:,}", pytest.approx(line.issued / total.issued, abs=1e-3))
        assert cells["source"][1] == cells["instructions"][1]
        if line.sectors:
            assert cells["sectors"] == (f"{line.sectors:,}", pytest.approx(line.sectors / total.sectors, abs=1e-3))
            assert cells["least"] == (f"{line.least:,}", None)
        if line.branches:
            assert cells["diverge"][0] == f"{line.divergent:,} of {line.branches:,}"
        assert ("sectors" in cells, "diverge" in cells, "shared" in cells) == (line.sectors > 0, line.branches > 0, False)
    assert len([row for row in rows.values() if "instructions" in row[2]]) == sum(len(each.lines) for each in counters)
    # sums, which have no number, and no colour
    sums = [row for row in found.rows if row[1] == "all lines"]
    assert [row[2]["instructions"] for row in sums] == [(f"{each.total.issued:,}", None) for each in counters]
    assert sums[1][2]["conflicts"] == ("31", None) and sums[2][2]["diverge"] == ("32 of 32", None)
    assert [label for label, _ in found.regions] == ["test_page.py, odd", "kernels.py, kernel", "kernels.py, by_threads"]
    assert found.links == ["#kernel-1", "#kernel-2", "#kernel-3"]
    said = " ".join(found.remarks)
    assert (
        "times the sectors that the data needs" in said and "bank conflicts, 32 cycles" in said and "32 of 32 branches" in said
    )


def test_what_a_kernel_is_and_the_model_of_a_card(counters):
    text = pages.page(counters.kernels, SHEETS["T4"])
    assert "<b>Occupancy</b> (T4, a model)" in text and "<b>Roofline</b> (T4, a model)" in text
    assert "4 blocks of 256 threads" in text and "limits and peak rates of the data sheet of the T4" in text
    widths = [float(width) for width in re.findall(r'class="bar" style="width: ([\d.]+)%', text)]
    assert len(widths) == 6 and all(max(pair) == 100 for pair in zip(widths[::2], widths[1::2], strict=True))


def test_notebooks_show_the_same_with_its_style(counters):
    text = counters._repr_html_()
    assert text.startswith("<style>") and pages._body(counters.kernels, counters.sheet) in text and "<main" not in text
    rules = [rule.strip() for rule in re.findall(r"^\s*([^@{}]+)\{", text.partition("</style>")[0], re.M)]
    assert rules and all(".counters" in part for rule in rules for part in rule.removeprefix("<style>").split(","))


def test_kernels_whose_source_is_gone_or_is_not_a_file(tmp_path):
    """Lines have their numbers then, and no text."""
    names, path = {"cuda": cuda}, tmp_path / "gone.py"
    path.write_text("def gone(x, y):\n    i = cuda.grid(1)\n    y[i] = x[i]\n")
    exec(compile(path.read_text(), str(path), "exec"), names)
    with numbanet.emulated(counters=True) as card:
        cuda.jit(names["gone"])[1, 32](np.ones(32, F), np.zeros(32, F))
    path.unlink()
    found = read(pages.page(card.counters.kernels, SHEETS["A100"]))
    rows = {row[0]: row for row in found.rows}
    assert rows["3"][1] == "" and rows["3"][2]["sectors"][0] == "8" and found.regions == [("gone.py", "0")]
    assert "gone" in str(card.counters)
    assert read(pages.page([], SHEETS["A100"])).rows == []


@pytest.mark.parametrize(
    "name, error", [("no/lines.html", FileNotFoundError), ("", IsADirectoryError), ("lines.txt", ValueError)]
)
def test_a_page_that_cannot_be_written(counters, tmp_path, name, error):
    with pytest.raises(error):
        counters.html(tmp_path / name)
    assert [*tmp_path.iterdir()] == []


# --- in a browser -----------------------------------------------------------------------------------------------------
LOOK = """
async function look(page) {
  found[page] = [];
  for (const width of [400, 1200]) {
    const frame = await opened(page, width), shown = frame.contentDocument, root = shown.documentElement;
    const seen = element => element.getClientRects().length > 0, codes = [...shown.querySelectorAll("td.code")];
    found[page].push({
      sideways: root.scrollWidth - root.clientWidth,
      inner: Math.max(...[...shown.querySelectorAll(".wide")].map(part => part.scrollWidth - part.clientWidth)),
      codes: codes.filter(seen).length, all: codes.length, heads: [...shown.querySelectorAll("thead")].filter(seen).length,
      small: Math.min(...codes.map(code => code.getBoundingClientRect().width)),
      low: Math.min(...codes.map(code => code.getBoundingClientRect().height)),
    });
    frame.remove();
  }
}
"""


@pytest.mark.long
@pytest.mark.slow
def test_narrow_and_wide_pages_fit(counters, tmp_path):
    counters.html(tmp_path / "lines.html")
    narrow, wide = browsed(tmp_path, LOOK, ["lines.html"], tmp_path / "profile")["lines.html"]
    assert narrow["sideways"] <= 0 and narrow["inner"] <= 0 and wide["sideways"] <= 0  # nothing scrolls sideways
    assert narrow["heads"] == 0 and wide["heads"] == 3 and narrow["codes"] == wide["codes"] == wide["all"] > 10
    assert (
        narrow["small"] > 250 and narrow["low"] > 10
    )  # a line of source takes the whole width, and one without text its height
    assert wide["inner"] <= 0
