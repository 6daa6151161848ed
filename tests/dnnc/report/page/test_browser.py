"""The page in a headless Chromium: it loads, logs no error, asks for nothing, and can be used by mouse and by keyboard."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dnnc.report.page import frame, page
from ir.core.facets import Time
from ir.core.topology import Topology
from ir.text.units import bytes_text, percent_text, seconds_text
from passes.costs.op_time import op_seconds
from tests.dnnc.report.page.browser import Page, browser, chromium
from tests.dnnc.report.page.planning import planned
from tests.dnnc.report.page.test_document import HOSTILE, data_of, hostile

__all__ = ["hostile"]

pytestmark = pytest.mark.skipif(not chromium(), reason="no Chromium on the path")


@pytest.fixture(scope="module")
def window() -> Iterator[Page]:
    with browser() as one:
        one.size(1300, 900)
        yield one


@pytest.fixture
def shown(window: Page, request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Page]:
    """The page of a plan; behind the test, no error was logged and nothing was fetched."""
    (tmp_path / "page.html").write_text(page(planned(request.param)), encoding="utf-8")
    window.open(tmp_path / "page.html")
    yield window
    assert window.errors == []
    assert window.requests == []


def count(window: Page, selector: str) -> int:
    return int(window.value(f"document.querySelectorAll({json.dumps(selector)}).length"))


@pytest.mark.parametrize(
    "shown",
    ["mesh", "training", *(pytest.param(kind, marks=pytest.mark.slow) for kind in ("stages", "replicas", "latency"))],
    indirect=True,
)
def test_every_kind_of_plan_loads(shown: Page, tmp_path: Path) -> None:
    assert count(shown, ".card") == 4
    assert count(shown, "#graph .node") > 0
    assert count(shown, "#timelines svg rect title") > 0
    assert count(shown, "#memories figure") > 0
    for theme in ("light", "dark"):
        shown.theme(theme)
        shown.screenshot(tmp_path / f"{theme}.png")
    assert (tmp_path / "light.png").read_bytes() != (tmp_path / "dark.png").read_bytes()


@pytest.mark.parametrize("shown", ["mesh"], indirect=True)
def test_a_box_opens_by_click_and_by_key(shown: Page) -> None:
    closed = count(shown, "#graph .node")
    many = "[aria-label*='equal layers'][aria-expanded='false']"
    shown.click(many)
    assert count(shown, "#graph .node") > closed + 10
    assert count(shown, ".cluster[aria-expanded='true']") == 1
    assert shown.value("document.activeElement.getAttribute('aria-expanded')") == "true", "the focus stays on the box"
    shown.press("Enter")
    assert count(shown, "#graph .node") == closed
    shown.press("ArrowDown")
    assert shown.value("document.activeElement.getAttribute('aria-label')").startswith("stage 0, ")


@pytest.mark.parametrize("shown", ["mesh"], indirect=True)
def test_the_table_sorts_and_searches(shown: Page) -> None:
    first = "document.querySelector('#ops-table tbody tr').children[{}].textContent"
    shown.click("[data-sort='total']")
    assert shown.value("document.querySelector('[aria-sort=descending] button').dataset.sort") == "total"
    assert shown.value(first.format(4)) in ("MatMul", "Gemm")
    shown.click("#search")
    shown.type("softmax h.2")
    assert count(shown, "#ops-table tbody tr") == 1
    assert shown.value("document.getElementById('found').textContent").startswith("1 row")


@pytest.mark.parametrize("shown", ["stages"], indirect=True)
def test_buttons_change_the_timeline_and_the_theme(shown: Page) -> None:
    width = "document.querySelector('#timelines svg').clientWidth"
    before = shown.value(width)
    shown.click("#time-in")
    assert shown.value(width) > 1.5 * before
    shown.theme("light")
    colour = "getComputedStyle(document.body).backgroundColor"
    light = shown.value(colour)
    shown.click("#theme")
    assert shown.value(colour) != light


@pytest.mark.parametrize("shown", ["stages"], indirect=True)
def test_numbers_read_as_in_the_tables_of_the_command(shown: Page) -> None:
    values = [0.0, 1e-10, 9.9949e-7, 1e-6, 0.001234, 0.0099951, 0.0997, 0.9994, 0.9996, 12.3456, 3600.0]
    sizes = [0, 1, 999, 1023, 1024, 1500, 1 << 20, 123456789, 1 << 40]
    shares = [0.0, 0.0004, 0.0006, 0.12345, 1.0]
    for name, python, numbers in (
        ("seconds", seconds_text, values), ("bytes", bytes_text, sizes), ("percent", percent_text, shares)
    ):  # fmt: skip
        told = shown.value(f"{json.dumps(numbers)}.map(format.{name})")
        assert told == [python(number) for number in numbers]


def with_runs(count: int) -> str:
    """A page with so many runs, each of which reads the one before, and the first."""
    text = page(planned("stages"))
    data = data_of(text)
    (old,) = re.findall(r'id="data">(.*?)</script>', text, re.DOTALL)
    run = {**data["runs"][0], "loops": False}
    data["runs"] = [{**run, "stage": 2 * number // count, "layers": [f"layer.{number}"]} for number in range(count)]
    data["edges"] = [[source, 0, number, 0, "t", 8] for number in range(1, count) for source in {0, number - 1}]
    return text.replace(old, json.dumps(data).replace("<", "\\u003c"))


@pytest.mark.parametrize(("count_", "drawn", "far"), [(20, 20, 0), (80, 80, 1), (800, 0, 0)])
def test_a_graph_of_many_boxes_is_drawn_as_far_as_it_can(
    window: Page, tmp_path: Path, count_: int, drawn: int, far: int
) -> None:
    """Edges over many ranks are what the layout takes long for: it is spared those; still more boxes are not drawn."""
    (tmp_path / "page.html").write_text(with_runs(count_), encoding="utf-8")
    window.open(tmp_path / "page.html")
    assert count(window, "#graph .node") == drawn
    assert (count(window, ".edge.far") > 0) == bool(far)
    assert ("too many to draw" in window.value("document.getElementById('graph').textContent")) == (drawn == 0)
    assert window.errors == []


def test_hostile_names_are_shown_and_not_obeyed(window: Page, hostile: Path, tmp_path: Path) -> None:
    window.open(hostile)
    assert count(window, "img") == 0
    assert HOSTILE in window.value("document.body.textContent")
    window.click("#graph [aria-expanded]")
    assert count(window, "img") == 0
    assert window.errors == []
    ready = "<script>document.documentElement.dataset.ready = 'yes'</script>"
    (tmp_path / "frame.html").write_text(f"<!DOCTYPE html><title>notebook</title>{frame(hostile.read_text())}{ready}")
    window.open(tmp_path / "frame.html")
    assert count(window, "img") == 0
    assert window.errors == []


def test_a_narrow_window_needs_no_scrolling_sideways(window: Page, tmp_path: Path) -> None:
    (tmp_path / "page.html").write_text(page(planned("mesh")), encoding="utf-8")
    window.size(400, 800)
    window.open(tmp_path / "page.html")
    assert window.value("document.documentElement.scrollWidth") <= 400
    window.size(1300, 900)


@pytest.mark.parametrize("shown", ["training"], indirect=True)
def test_what_a_screen_reader_meets_has_a_name(shown: Page) -> None:
    """Every control, chart and table says what it is; titles go down one level at a time."""
    unnamed = """[...document.querySelectorAll("button, select, input, [tabindex='0'], svg[role]")]
        .filter((one) => !one.getAttribute("aria-label") && !one.textContent.trim() && !one.labels?.length)
        .map((one) => one.outerHTML.slice(0, 80))"""
    assert shown.value(unnamed) == []
    assert shown.value("[...document.querySelectorAll('table')].every((one) => one.caption)") is True
    levels = shown.value("[...document.querySelectorAll('h1, h2, h3')].map((one) => Number(one.tagName[1]))")
    assert levels[0] == 1
    assert all(later - before <= 1 for before, later in itertools.pairwise(levels))


def test_a_profile_is_shown_beside_what_formulas_say(window: Page, tmp_path: Path) -> None:
    """Each product was measured at twice what its formula says, and nothing else was."""
    module, path = planned("stages"), tmp_path / "page.html"
    entry, type_ = module.entry, next(iter(module.of_type(Topology))).types[0]
    ops = [
        op.with_facets(Time(((f"@{type_.name}", 2 * op_seconds(op, type_)),))) if op.name == "onnx.Gemm" else op
        for op in entry.ops
    ]
    path.write_text(page(module.replace(entry, replace(entry, ops=tuple(ops)))), encoding="utf-8")
    window.open(path)
    cells = "[...document.querySelectorAll('#kinds tbody tr')].map((one) => [...one.children].map((cell) => cell.textContent))"
    ((operator, copies, *_, ratio),) = window.value(cells)
    assert (operator, copies, ratio) == ("Gemm", "4", "0.50x")
    assert count(window, "[data-sort='formula']") == 1
    path.write_text(page(module), encoding="utf-8")
    window.open(path)
    assert (count(window, "#kinds table"), count(window, "[data-sort='formula']")) == (0, 0)
    assert window.errors == []
