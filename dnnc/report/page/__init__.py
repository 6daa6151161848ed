"""The plan as a web page: one file, no network.

- ``document``: the page as one HTML text;
- ``explorer``: numbers for the nodes of the model in Model Explorer;
- ``data``: what it shows, as JSON; ``answers``, ``blocks``, ``loads``, ``tracks``, ``texts``: its parts.
- ``page.html``, ``page.css``, ``page.js``, ``operators.js``: how it shows it;
  ``vendor``: the libraries in it (d3, dagre), with their licences.
"""

from dnnc.report.page.data import page_data
from dnnc.report.page.document import frame, page
from dnnc.report.page.explorer import node_data

__all__ = ["frame", "node_data", "page", "page_data"]
