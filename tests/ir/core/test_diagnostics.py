"""How a diagnostic is shown."""

from __future__ import annotations

from ir.core.diagnostics import Diagnostic


def test_lines_of_a_message_and_of_a_hint_are_lines_and_those_of_a_name_are_not() -> None:
    """What a process said last stands in a hint, a line each, indented; a name with a newline does not begin a line."""
    shown = str(Diagnostic("two:\n  a\nb", "x", hint="it said:\n    one\n    t\x1bwo\nthree"))
    assert shown == "x: error: two:\n  a\\nb\n  hint: it said:\n    one\n    t\\x1bwo\\nthree"
