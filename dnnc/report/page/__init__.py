"""The plan as a web page: one file, no network.

- ``page``: the page of a planned module; ``frame``: the page inside a cell of a notebook.
- ``data``: what it shows, as JSON; ``answers``, ``blocks``, ``loads``, ``tracks``: its parts.
- ``page.html``, ``page.css``, ``page.js``: how it shows it; ``vendor``: the libraries in it (d3, dagre), with their licences.
"""

from dnnc.report.page.data import page_data
from dnnc.report.page.document import frame, page

__all__ = ["frame", "page", "page_data"]
