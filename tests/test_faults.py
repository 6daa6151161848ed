"""Kinds of faults: each has a code of its own, and ``dnnc/ERRORS.md`` lists how each is told, why it comes and what helps.

The list is a golden: ``pytest tests/test_faults.py --update-golden`` writes it anew. Text fields stand there by their names in
capitals, numbers as 3."""

from __future__ import annotations

import ast
import importlib
import inspect
import itertools
import json
import re
from typing import Any

import pytest

from dnnc.cli import main
from ir.core.diagnostics import Diagnostic, Fault, InvalidInput, Severity, Span, Value
from tests.source_nodes import ROOT, nodes

LIST = ROOT / "dnnc" / "ERRORS.md"
HEAD = """# Errors and warnings by code

A message of dnnc has a code (`error[E0101]`) that keeps its meaning from version to version. With `--json`, a failing command
prints an object whose `errors` hold its code, place and values. Each code below has its cause, its message and what helps;
words in capitals stand for names, and 3 for a number. E stands for an error and W for a warning, which stops nothing; what
is an error of one command and a warning of another keeps its E.
"""


def kinds() -> list[type[Fault]]:
    for path in sorted(ROOT.glob("*/**/faults.py")):
        if path.parts[len(ROOT.parts)] in ("dnnc", "ir", "passes"):
            importlib.import_module(".".join(path.relative_to(ROOT).with_suffix("").parts))
    return [kind for kind in Fault.kinds.values() if kind.__module__.split(".")[0] in ("dnnc", "ir", "passes")]


def sample(kind: type[Fault]) -> Fault:
    """A fault whose fields are told apart by what they hold."""
    values: dict[str, Value] = {}
    for name, type_ in inspect.get_annotations(kind).items():
        words = name.upper().replace("_", " ")
        values[name] = words if type_ == "str" else 3 if type_ in ("int", "float") else (words, f"OTHER {words}")
    return kind(**values)


def listed() -> str:
    lines = [HEAD]
    of_module = sorted(kinds(), key=lambda kind: (kind.code[1:3], kind.__module__, kind.code[1:], kind.code))
    for module, group in itertools.groupby(of_module, key=lambda kind: kind.__module__):
        lines.append(f"## `{module.replace('.', '/').removesuffix('/faults')}`\n")
        for kind in group:
            cause = " ".join((kind.__doc__ or "").split())
            lines.append(f"**{kind.code}** {cause}\n\n```\n{sample(kind).at()}\n```\n")
    return "\n".join(lines)


def test_the_list_is_up_to_date(update_golden: bool) -> None:
    text = listed()
    if update_golden:
        LIST.write_text(text)
    assert LIST.read_text() == text, "pytest tests/test_faults.py --update-golden writes it anew"


SHARED = {
    "08": {"dnnc.machines.faults", "dnnc.machines.topology.faults"},
    "32": {"passes.partition.faults", "passes.reference.faults"},
}
"""Digits of more than one file: codes stay when kinds move to a file of their own."""


def test_codes_are_of_their_rooms() -> None:
    """All kinds of a file share the two digits of their room, and no other file has them but those of ``SHARED``."""
    rooms: dict[str, set[str]] = {}
    for kind in kinds():
        assert re.fullmatch(r"[EW]\d{4}", kind.code), kind
        assert kind.__doc__ not in (None, Fault.__doc__), f"{kind.__name__} tells no cause"
        rooms.setdefault(kind.code[1:3], set()).add(kind.__module__)
    assert all(len(modules) == 1 or modules == SHARED.get(digits) for digits, modules in rooms.items()), rooms
    assert sum(map(len, rooms.values())) == len(set().union(*rooms.values()))


def test_every_kind_is_used() -> None:
    names = {node.id for path, node in nodes(ast.Name) if path.name != "faults.py"}  # an import alone is no use
    names |= {node.attr for path, node in nodes(ast.Attribute) if path.name != "faults.py"}
    assert not [kind.__name__ for kind in kinds() if kind.__name__ not in names]


MAKERS = {
    "InvalidInput",
    "UsageError",
    "Infeasible",
    "CheckFailed",
    "Diagnostic",
    "StageStopped",
    "RuntimeFailure",
    "Interrupted",
}
"""What takes a fault or its diagnostic: the text itself is in the templates of the fault."""


def test_no_text_is_made_in_line() -> None:
    """No error or warning is made of a text where it is raised."""
    wrong = []
    for path, node in nodes(ast.Call):
        if not node.args or not isinstance(node.args[0], ast.Constant | ast.JoinedStr | ast.BinOp):
            continue
        name = node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")
        makes = name in MAKERS or (name in ("error", "warn") and "sink" in ast.unparse(node.func))
        if makes and "Severity.NOTE" not in ast.unparse(node):  # a note has no code
            wrong.append(f"{path}:{node.lineno}")
    assert not wrong


class _Made(Fault, code="E9901"):
    """Made for this test."""

    message = "there is no device '{device}'{more}"
    note = "{note_of_it}"
    hint = "the topology has {devices}"
    device: str
    devices: tuple[str, ...]
    note_of_it: str = ""
    most: int = 3

    @property
    def more(self) -> str:
        return f" among {self.most}"


def test_a_fault_fills_its_templates_and_tells_its_values() -> None:
    span = Span(2, 5, 3, "the {line}")
    diagnostic = InvalidInput(_Made("{most}", devices=("a", "b")), where="x", span=span).diagnostics[0]
    assert diagnostic.severity is Severity.ERROR
    assert str(diagnostic).splitlines() == [
        "x:2:5: error[E9901]: there is no device '{most}' among 3",
        "  the {line}",
        "      ^^^",
        "  hint: the topology has a, b",
    ]
    told = json.loads(json.dumps(diagnostic.to_json()))
    assert told["values"] == {"device": "{most}", "devices": ["a", "b"], "note_of_it": "", "most": 3}
    assert (told["code"], told["line"], told["column"]) == ("E9901", 2, 5)
    plain = _Made("d", ("a",), "why").at("x")
    assert Diagnostic.from_json(json.loads(json.dumps(plain.to_json()))) == plain
    assert "  note: why\n" in str(plain)


def test_a_fault_is_a_value() -> None:
    one = _Made("d", ("a",))
    assert one == _Made(device="d", devices=("a",))
    assert len({one, _Made("d", ("a",))}) == 1
    assert one != _Made("e", ("a",))
    with pytest.raises(AttributeError, match="frozen"):
        one.device = "e"  # type: ignore[misc]
    made: Any = _Made
    with pytest.raises(TypeError, match="needs 'devices'"):
        made("d")
    with pytest.raises(TypeError, match="has 4 fields, 5 values"):
        made("d", ("a",), "", 3, 4)
    with pytest.raises(TypeError, match="takes no 'device' here"):
        made("d", ("a",), device="d")
    with pytest.raises(TypeError, match="E9901 is the code of _Made"):

        class _Other(Fault, code="E9901"):
            """Of a code that is taken."""


def test_a_failing_command_tells_its_errors_as_json(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dnnc.cli.console._objects", [])
    assert main(["inspect", "nowhere", "--json", "--no-such-option"]) == 2
    out, err = capsys.readouterr()
    told = json.loads(out)
    assert (told["schema"], told["exit"]) == ("dnnc.error/1", 2)
    assert told["errors"][0]["code"] == "E0106"
    assert "No such option" in err
