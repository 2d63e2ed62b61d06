"""The documentation as a site: every public name has a page, walkthroughs show their figures, and a browser shows it all."""

import importlib
import importlib.util
import json
import pkgutil
import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import numbanet
from tests.browser import CONTRAST, browsed

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "_build" / "html"
WALKTHROUGHS = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))


@pytest.fixture(scope="module")
def extensions():
    """The code that makes pages of the site."""
    spec = importlib.util.spec_from_file_location(
        "extensions", ROOT / "docs/extensions/__init__.py", submodule_search_locations=[str(ROOT / "docs/extensions")]
    )
    sys.modules["extensions"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name in ("reference", "commands", "docstrings", "walkthroughs"):
        importlib.import_module(f"extensions.{name}")
    yield module
    for name in [name for name in sys.modules if name.partition(".")[0] == "extensions"]:
        del sys.modules[name]


# --- pages that are derived -------------------------------------------------------------------------------------------
def test_every_public_name_has_a_page(extensions, tmp_path):
    """A name in `__all__` of any package: a page that names it, linked on the page of the reference."""
    extensions.reference.write(tmp_path)
    index = (tmp_path / "index.md").read_text(encoding="utf-8")
    sections = dict(re.findall(r"^## `(.+?)`\n(.*?)(?=^## |\Z)", index, re.S | re.M))
    modules = [numbanet, numbanet.ops]
    for found in pkgutil.walk_packages(numbanet.__path__, "numbanet."):
        if not found.name.startswith(("numbanet.cli", "numbanet.bench", "numbanet.__main__")):
            modules.append(importlib.import_module(found.name))
    public = [(module, name) for module in modules for name in getattr(module, "__all__", ())]
    public += [(numbanet.ops, name) for name in ("linear", "conv2d", "lstm", "softmax_cross_entropy", "matmul")]
    public = [pair for pair in public if not isinstance(getattr(*pair), types.ModuleType)]
    assert len(public) > 250 and {"io", "layers", "placement", "parallel"} <= {m.__name__.split(".")[-1] for m, _ in public}
    linked = set(re.findall(r"^\* \[`(?:\w+)`\]\((.+?)\.rst\)", index, re.M))
    for module, name in public:
        homes = [full for full in linked if full.endswith(f".{name}")]
        same = [full for full in homes if getattr(sys.modules[full.rpartition(".")[0]], name) is getattr(module, name)]
        assert same, f"{module.__name__}.{name} has no page"
        assert f":: {same[0]}\n" in (tmp_path / f"{same[0]}.rst").read_text(encoding="utf-8")
    assert {"numbanet", "numbanet.ops", "numbanet_kernels.ptx"} <= set(sections)


def test_pages_of_names_that_are_gone_are_removed(extensions, tmp_path):
    old, own = tmp_path / "numbanet.Gone.rst", tmp_path / "commands.rst"
    old.write_text("gone")
    extensions.commands.write(tmp_path)
    extensions.reference.write(tmp_path)
    assert not old.exists() and "numbanet train" in own.read_text(encoding="utf-8")


def test_formulas_in_docstrings_are_no_marks(extensions):
    lines = [
        "y = |x| * w, of target_mean_",
        "",
        "    y[n] = 2 |x|",
        "",
        "a, b   what they are",
        "       further",
        "",
        "*as* `it|is`",
    ]
    extensions.docstrings.clean(None, "function", "f", None, None, lines)
    assert lines == [
        *(r"y = \|x\| \* w, of target_mean\_", "", r"| y[n] = 2 \|x\|", "", "", "a, b", "    what they are"),
        *("    further", "", "", "*as* `it|is`"),
    ]


@pytest.mark.parametrize("path", WALKTHROUGHS, ids=lambda path: path.stem)
def test_walkthroughs_become_pages_and_notebooks_that_show_figures(extensions, path):
    """They leave their figures open and the backend to the notebook; what they print and draw is what the page shows."""
    source = path.read_text(encoding="utf-8")
    assert not re.search(r"plt\.close|matplotlib\.use|\.switch_backend", source)
    made = extensions.walkthroughs.converted(source)
    compile(made, path.name, "exec")
    title = re.match(r'r"""\n(.+)\n(=+)\n', made)
    assert title and len(title[1]) == len(title[2]) and title[1].startswith(f"{int(path.stem[:2])}. ")
    prose = "\n".join(line for line in made.splitlines() if line.startswith("# "))
    assert not re.search(r"(?<!`)`[^`\n]+`(?![`_])", prose) and "\n# |" not in prose


# --- the site ---------------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def site():
    """The site, built; with warnings as errors."""
    for name in ("sphinx", "pydata_sphinx_theme", "sphinx_gallery", "numpydoc", "myst_parser", "sphinx_copybutton"):
        pytest.importorskip(name, reason="builds the documentation: pip install 'numbanet[docs]'")
    command = [sys.executable, "-m", "sphinx", "-b", "html", "-W", "--keep-going", "-q", ROOT / "docs", SITE]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=1500)
    assert done.returncode == 0, done.stderr
    return SITE


@pytest.mark.long
@pytest.mark.slow
def test_the_site_is_built_without_a_warning(site):
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages <= {path.stem for path in site.glob("*.html")} and (site / "reference" / "numbanet.Net.html").exists()
    notebooks = list(site.glob("_downloads/*/*.ipynb"))
    assert {path.stem for path in notebooks} == {path.stem for path in WALKTHROUGHS}
    for path in notebooks:
        text = json.loads(path.read_text(encoding="utf-8"))
        assert "savefig" in json.dumps(text["cells"])
    for path in WALKTHROUGHS:
        drawn = len(re.findall(r"^save\(", path.read_text(encoding="utf-8"), re.M))
        page = (site / "walkthroughs" / f"{path.stem}.html").read_text(encoding="utf-8")
        assert len(re.findall(r'class ?= ?"sphx-glr-(single|multi)-img"', page)) >= drawn, path.name


LOOK = """
async function look(page) {
  const frame = await opened(page, 400), shown = frame.contentDocument, root = shown.documentElement;
  for (let i = 0; page.includes("?q=") && i < 50 && !shown.querySelector("#search-results li"); i++) await wait(100);
  const texts = [...shown.querySelectorAll("article :is(p, dt, li, h1, h2, h3)")].filter(text => !text.closest("table, pre"));
  const pictures = [...shown.images];
  for (const picture of pictures) picture.loading = "eager";
  for (let i = 0; !pictures.every(picture => picture.complete) && i < 100; i++) await wait(100);
  found[page] = {
    broken: pictures.filter(picture => !picture.naturalWidth).map(picture => picture.src),
    pictures: pictures.length,
    sideways: Math.max(root.scrollWidth, ...texts.map(text => text.getBoundingClientRect().right)) - root.clientWidth,
    copies: shown.querySelectorAll("button.copybtn").length,
    results: [...shown.querySelectorAll("#search-results li a")].map(link => link.textContent),
  };
  frame.remove();
}
"""
READ = (
    CONTRAST
    + """
function keys(shown) {  // what a reader without a mouse meets
  const all = [...shown.querySelectorAll("a[href], button, input, select, summary, [tabindex]")].filter(visible);
  const shows = ["outlineStyle", "outlineWidth", "boxShadow", "backgroundColor", "color", "borderColor", "textDecoration"];
  const looks = element => shows.map(name => getComputedStyle(element)[name]).join();
  const unseen = [];
  for (const element of all.filter(element => element.tabIndex >= 0)) {
    const before = looks(element);
    element.focus({preventScroll: true});
    if (shown.activeElement !== element) unseen.push("cannot be reached: " + named(element));
    else if (looks(element) === before) unseen.push("looks the same: " + named(element));
    element.blur();
  }
  const scrolling = [...shown.querySelectorAll("article *")].filter(element => visible(element)
    && element.scrollWidth > element.clientWidth + 1 && /auto|scroll/.test(getComputedStyle(element).overflowX));
  const names = elements => [...new Set(elements.map(named))], out = all.filter(element => element.tabIndex < 0);
  const inside = "[tabindex='0'], a, button", silent = element => !(element.textContent.trim() || element.ariaLabel
    || element.title || element.placeholder || element.labels?.length || element.querySelector("img[alt], svg"));
  return {
    unseen: [...new Set(unseen)],
    count: all.length,
    first: shown.querySelector("a[href], button, input")?.textContent.trim(),
    main: !!shown.querySelector(shown.querySelector("a[href]").getAttribute("href")),
    ahead: names(all.filter(element => element.tabIndex > 0)),
    left_out: names(out.filter(element => element.matches("a, button, input, summary"))),
    scrolling: names(scrolling.filter(element => element.tabIndex < 0 && !element.querySelector(inside))),
    unnamed: names(all.filter(element => element.matches("a, button, input") && silent(element))),
  };
}
async function look(page) {
  const frame = await opened(page, 1280), shown = frame.contentDocument;
  frame.contentWindow.focus();
  const still = shown.createElement("style");  // colours that change slowly would be read on their way
  still.textContent = "* { transition: none !important; }";
  shown.head.append(still);
  found[page] = {};
  for (const theme of ["light", "dark"]) {
    shown.documentElement.dataset.theme = theme;
    await wait(500);
    found[page][theme] = faint(shown);
  }
  found[page].keys = keys(shown);
  frame.remove();
}
"""
)
PAGES = ("index", "which_dropout", "coming_from", "results", "kernels", "reference/index", "reference/numbanet.Net")
PAGES = [f"{page}.html" for page in (*PAGES, "walkthroughs/index", "walkthroughs/07_convolutions")]


@pytest.fixture(scope="module")
def looked(site, tmp_path_factory):
    """What a browser finds on pages that are 400 pixels wide."""
    return browsed(site, LOOK, [*PAGES, "search.html?q=rdp"], tmp_path_factory.mktemp("profile"))


@pytest.fixture(scope="module")
def read(site, tmp_path_factory):
    """The contrast of texts, and what is reached by keys, on pages that are 1280 pixels wide."""
    return browsed(site, READ, [*PAGES, "parameters.html", "search.html?q=rdp"], tmp_path_factory.mktemp("profile"))


@pytest.mark.long
@pytest.mark.slow
def test_pictures_load_code_copies_and_no_page_scrolls_sideways(looked):
    assert {page: seen["broken"] for page, seen in looked.items() if seen["broken"]} == {}
    assert {page: seen["sideways"] for page, seen in looked.items() if seen["sideways"] > 1} == {}
    assert looked["index.html"]["pictures"] >= 1 and looked["walkthroughs/index.html"]["pictures"] >= len(WALKTHROUGHS)
    assert looked["walkthroughs/07_convolutions.html"]["pictures"] >= 5
    assert looked["index.html"]["copies"] >= 1 and looked["kernels.html"]["copies"] > 10


@pytest.mark.long
@pytest.mark.slow
def test_the_search_finds_rdp(looked):
    found = looked["search.html?q=rdp"]["results"]
    assert any("Kinds of dropout" in title for title in found) and len(found) >= 5


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("theme", ["light", "dark"])
def test_texts_have_the_contrast_of_wcag_aa(read, theme):
    """4.5 to 1, and 3 to 1 of large texts (WCAG 2.1, 1.4.3)."""
    assert {page: seen[theme]["pale"] for page, seen in read.items() if seen[theme]["pale"]} == {}
    assert all(seen[theme]["count"] > 50 for seen in read.values())


@pytest.mark.long
@pytest.mark.slow
def test_all_is_reached_by_keys(read):
    """In order of the page, with the focus seen; what scrolls by itself is reached, too (WCAG 2.1: 2.1.1, 2.4.3, 2.4.7)"""
    for name in ("unseen", "ahead", "left_out", "scrolling", "unnamed"):
        assert {page: seen["keys"][name] for page, seen in read.items() if seen["keys"][name]} == {}, name
    for page, seen in read.items():
        assert seen["keys"]["first"] == "Skip to main content" and seen["keys"]["main"] and seen["keys"]["count"] > 20, page
