"""The machine that dnnc runs on, as a topology: what it is (``detect``), and several such as one (``merge``)."""

from __future__ import annotations

from dnnc.machine.detect import detected, missing_providers
from dnnc.machine.facts import Facts, read_facts
from dnnc.machine.merge import Merged, merged, parse_link

__all__ = ["Facts", "Merged", "detected", "merged", "missing_providers", "parse_link", "read_facts"]
