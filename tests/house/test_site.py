"""The documentation as a site: every public name has a page, walkthroughs show their figures, and a browser shows it all."""

import functools
import http.server
import importlib
import importlib.util
import json
import pkgutil
import re
import shutil
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest

import numbanet

ROOT = Path(__file__).parents[2]
SITE = ROOT / "docs" / "_build" / "html"
WALKTHROUGHS = sorted((ROOT / "examples").glob("[0-9][0-9]_*.py"))
BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)


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


LOOK = """<!doctype html><body><script>
const pages = %s, found = {};
const wait = ms => new Promise(done => setTimeout(done, ms));
async function look(page) {
  const frame = document.createElement("iframe");
  frame.width = 400; frame.height = 800; frame.src = page;
  const loaded = new Promise(done => frame.onload = done);
  document.body.append(frame);
  await loaded; await wait(300);
  const shown = frame.contentDocument, root = shown.documentElement;
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
(async () => {
  for (const page of pages) await look(page);
  const text = document.createElement("pre");
  text.id = "found"; text.textContent = JSON.stringify(found);
  document.body.append(text);
})();
</script></body>"""
OPTIONS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --virtual-time-budget=600000 --window-size=1280,900 --dump-dom"
)


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *given):
        pass


@pytest.fixture(scope="module")
def looked(site, tmp_path_factory):
    """What a browser finds on pages that are 400 pixels wide."""
    if BROWSER is None:
        pytest.skip("needs Chromium")
    pages = ["index", "which_dropout", "coming_from", "results", "kernels", "reference/index", "reference/numbanet.Net"]
    pages = [f"{page}.html" for page in (*pages, "walkthroughs/index", "walkthroughs/07_convolutions")]
    (site / "_look.html").write_text(LOOK % json.dumps([*pages, "search.html?q=rdp"]), encoding="utf-8")
    handler = functools.partial(Silent, directory=str(site))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        profile = tmp_path_factory.mktemp("profile")
        command = [BROWSER, *OPTIONS.split(), f"--user-data-dir={profile}", f"http://127.0.0.1:{server.server_port}/_look.html"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    finally:
        server.shutdown()
        (site / "_look.html").unlink()
    text = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.S)
    assert text, done.stderr[-2000:]
    return json.loads(text[1].replace("&amp;", "&").replace("&lt;", "<").replace("&gt;", ">"))


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
