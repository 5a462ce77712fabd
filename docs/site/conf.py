"""Sphinx's settings for the site. Its pages are staged by tools/course_site, which ``make site`` runs."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tools")]

import mini_vllm  # noqa: E402

project = "mini_vllm"
copyright = "the authors of mini_vllm, Apache-2.0"
version = release = mini_vllm.__version__
extensions = ["myst_nb", "sphinx.ext.autodoc", "course_site.extension"]

# ---- texts
nb_execution_mode = "off"  # notebooks are committed with their outputs, and tested elsewhere
myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 6
myst_url_schemes = ["http", "https", "mailto", "source"]
# These files are read on GitHub, too, where a line that begins with % is no comment.
myst_disable_syntax = ["myst_line_comment", "myst_block_break", "myst_target", "myst_role"]
highlight_language = "none"
smartquotes = False

# ---- the API
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
add_module_names = False
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 100
# Nothing is fetched, so what Python, MLX and others define has no page to lead to; nor have type variables.
nitpick_ignore_regex = [("py:.*", r"(?!mini_vllm\.).*"), ("py:class", r"mini_vllm\.[\w.]+\.(T|Result|AnyTenant|_\w+)")]

# ---- how it looks
html_theme = "furo"
html_title = "mini_vllm"
html_static_path = ["site.css"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
