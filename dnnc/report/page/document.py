"""The page as one HTML text: template, style, scripts and data joined.

Nothing in it is fetched, and its Content-Security-Policy forbids it: only the scripts and the style whose digests stand there
are used. Data are JSON in a block that no browser runs; ``<`` is escaped there, so that no name can end the block.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
import re
from collections.abc import Mapping, Sequence
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from dnnc.report.page.data import page_data

if TYPE_CHECKING:
    from dnnc.build.trace import TraceEvent
    from ir.core.module import Module

LIBRARIES = ("d3", "dagre")
"""d3 7.9.2 draws axes and curves, @dagrejs/dagre 3.1.3 lays out graphs: the minified files of their npm packages."""
SCRIPTS = ("page.js", "operators.js")
_PLACE = re.compile(r"\{\{(\w+)\}\}")
_SOURCE_MAP = re.compile(r"^//# sourceMappingURL=.*$", re.MULTILINE)


def page(module: Module, measured: Sequence[TraceEvent] = (), check: Mapping[str, Any] | None = None) -> str:
    """The page of a planned module, folded or not, as HTML. ``measured``: the timeline of a run, beside the predicted one;
    ``check``: what 'dnnc check --json' printed. Raises ValueError for a module without a plan."""
    data = page_data(module, measured, check)
    text = json.dumps(data, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    title = f"{data['model']} on {data['topology']}: dnnc plan"
    return _filled(html.escape(title), text)


def frame(text: str, height: int = 800) -> str:
    """The page ``text`` inside an ``iframe`` of its own, for notebooks: neither can touch the other."""
    return (
        f'<iframe title="dnnc plan" sandbox="allow-scripts" width="100%" height="{height}" style="border: 0" '
        f'srcdoc="{html.escape(text)}"></iframe>'
    )


def _filled(title: str, data: str) -> str:
    parts = {**_parts(), "title": title, "data": data}
    return _PLACE.sub(lambda match: parts[match[1]], _file("page.html"))


@cache
def _parts() -> dict[str, str]:
    """What is the same in every page."""
    scripts = {name: _SOURCE_MAP.sub("", _file(f"vendor/{name}.min.js")).strip() for name in LIBRARIES}
    licences = "\n\n".join(f"{name}\n\n{_file(f'vendor/{name}.LICENSE').strip()}" for name in LIBRARIES)
    style, script = _file("page.css"), "\n".join(map(_file, SCRIPTS))
    policy = [
        "default-src 'none'",
        "script-src " + " ".join(map(_digest, (*scripts.values(), script))),
        f"style-src {_digest(style)}",
        "base-uri 'none'",
        "form-action 'none'",
    ]
    return {**scripts, "style": style, "script": script, "licences": html.escape(licences), "policy": "; ".join(policy)}


def _digest(text: str) -> str:
    """The source expression of an inline script or style."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def _file(name: str) -> str:
    return files("dnnc.report.page").joinpath(name).read_text(encoding="utf-8")
