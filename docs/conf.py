"""Configuration of the documentation site, which `make docs` builds with Sphinx."""

import sys
from pathlib import Path

DOCS = Path(__file__).resolve().parent
sys.path.insert(0, str(DOCS.parent))

from pipeline import __version__  # noqa: E402
from pipeline.training.tensorflow_start import hold_back_stderr  # noqa: E402

with hold_back_stderr():  # The page of the Python API needs TensorFlow, which prints messages while it is loaded.
    import pipeline.input  # noqa: F401

project = "Tenfold"
author = "The Tenfold authors"
copyright = f"2026, {author}"  # noqa: A001
release = __version__
version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3
exclude_patterns = ["_build", "**/_*"]
nitpicky = False  # Types of other libraries have no page here.

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_typehints_description_target = "documented"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
default_role = "code"  # Docstrings use single backticks for names.

html_theme = "furo"
html_title = "Tenfold"
html_static_path = ["_static"]
html_css_files = ["tenfold.css"]
html_search_scorer = str(DOCS / "search_scores.js")
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_last_updated_fmt = None  # The same sources give the same pages.
html_theme_options = {
    "navigation_with_keys": True,
    "light_css_variables": {"color-brand-primary": "#0b6e4f", "color-brand-content": "#0b6e4f"},
    "dark_css_variables": {"color-brand-primary": "#5fd3a8", "color-brand-content": "#5fd3a8"},
    # System fonts: the pages load nothing from elsewhere.
    "footer_icons": [],
}
