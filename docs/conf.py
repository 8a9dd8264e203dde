"""Settings of Sphinx for the pages that docs/build_site.py has put together."""

from __future__ import annotations

from gradcheck_suite import __version__

project = "gradcheck-suite"
version = release = __version__
copyright = "the gradcheck-suite maintainers"  # noqa: A001 - the name that Sphinx reads

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
# Headings have the addresses that they have on GitHub.
myst_heading_anchors = 4
html_theme = "furo"
html_title = f"gradcheck-suite {__version__}"
# Pages that open from disk and ask nothing of the network; their sources are in the repository.
html_copy_source = False
# The page of a graph, which is none of Sphinx's.
html_extra_path = ["extra"]
html_show_sphinx = False
html_static_path = ["static"]
html_css_files = ["site.css"]
# For excerpts, the search would fetch every page that it finds, which browsers refuse from disk.
html_show_search_summary = False

add_module_names = False
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
napoleon_numpy_docstring = False
