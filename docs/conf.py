"""Configuration of the documentation: `make docs` builds it into docs/_build/html, without a network."""

import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent
sys.path[:0] = [str(HERE), str(ROOT)]
os.environ.setdefault("OMP_NUM_THREADS", "1")  # several walkthroughs run at a time
os.environ["COLUMNS"] = "100"  # of the help of commands

from extensions import commands, docstrings, reference, walkthroughs  # noqa: E402

import numbanet  # noqa: E402  the checkout's

project = "numbanet"
author = "the numbanet authors"
copyright = f"2026, {author}"
version = release = numbanet.__version__
language = "en"
highlight_language = "text"  # of blocks that do not say theirs
smartquotes = False  # defaults are shown as they are written

extensions = [
    "myst_parser",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
]
exclude_patterns = ["_build", "extensions"]
nitpicky = False  # MyST warns of links that lead nowhere in any case; types in docstrings are words
suppress_warnings = ["config.cache"]  # the gallery's settings hold functions

# --- pages --------------------------------------------------------------------------------------------------------------
myst_enable_extensions = ["attrs_inline", "colon_fence", "deflist"]
myst_heading_anchors = 4  # those of GitHub
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True

# --- reference: a page for each public name, written before Sphinx reads its sources --------------------------------------
default_role = "py:obj"  # `name` is a link if it is public, else code
autodoc_typehints = "none"  # docstrings have the types, in words
autodoc_member_order = "bysource"
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
reference.write(HERE / "reference")
commands.write(HERE / "reference")

# --- walkthroughs ---------------------------------------------------------------------------------------------------------
walkthroughs.write(ROOT / "examples", HERE / "_build" / "checkout" / "examples")
sphinx_gallery_conf = {
    "examples_dirs": [str(HERE / "_build" / "checkout" / "examples")],
    "gallery_dirs": ["walkthroughs"],
    "filename_pattern": r"/\d\d_",  # all run; the results are kept until the source of a walkthrough changes
    "within_subsection_order": "FileNameSortKey",
    "abort_on_example_error": True,
    "only_warn_on_example_error": False,
    "download_all_examples": False,
    "show_signature": False,
    "show_memory": False,
    "remove_config_comments": True,
    "capture_repr": (),  # walkthroughs print what they show
    "parallel": 2,
    "image_srcset": [],
    "matplotlib_animations": False,
    "write_computation_times": False,
}

# --- HTML -----------------------------------------------------------------------------------------------------------------
html_theme = "pydata_sphinx_theme"
html_title = f"numbanet {release}"
html_static_path = ["_static"]
html_css_files = ["numbanet.css"]
html_copy_source = False
html_show_sourcelink = False
html_sidebars = {"reference/*": []}  # instead of a list of all names, the page that explains them
html_theme_options = {
    "logo": {"text": "numbanet"},
    "show_toc_level": 2,
    "header_links_before_dropdown": 7,
    "navigation_with_keys": False,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
}


def setup(app):
    """Connect the cleaning of docstrings, before numpydoc reads them."""
    app.connect("autodoc-process-docstring", docstrings.clean, priority=100)
    app.connect("autodoc-skip-member", docstrings.skipped)
