"""INV10 and INV20: functions that ``fold`` wrote, and the calls of them."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import NamedTuple

from ir.core.attributes import AttrKind
from ir.core.facets import DECISIONS
from ir.core.module import Func, Stage
from ir.core.ops import Op
from ir.core.types import without_layout
from ir.verifier.findings import Findings

FOLDED = "fold.copies"
"""Attribute of a function that ``fold`` wrote: a call of it stands for its ops."""
VARIANT = "fold.variant"
"""Attribute of one that says what was decided about its copies: the block's name."""


def is_variant(program: Func | Stage) -> bool:
    """Whether ``program`` may hold decisions although it is called more than once."""
    return any(key == VARIANT for key, _ in program.attributes)


class WrongCall(NamedTuple):
    """What is wrong with a call. ``about``: the word in its line to point at."""

    code: str
    message: str
    about: str
    hint: str


class Copies:
    """The functions of a module: the number of names and ops of each, and the decisions in it."""

    def __init__(self, findings: Findings) -> None:
        self.findings = findings
        self.funcs = {func.name: func for func in findings.module.of_type(Func)}
        self.folded = {name for name, func in self.funcs.items() if any(key == FOLDED for key, _ in func.attributes)}
        self.sizes: dict[str, tuple[int, int]] = {}
        self.kinds: dict[str, set[str]] = {}

    def faults(self, call: Op, callee: Func) -> Iterator[WrongCall]:
        """What is wrong with ``call`` as a copy of ``callee``."""
        if len(call.attributes) > 1:
            names, ops = self.size(callee.name)
            expected = {"names": names, "paths": ops, "nodes": ops, "scopes": ops}
            for key, attribute in call.attributes:
                if key in expected and len(attribute.value) != expected[key]:
                    message = (
                        f"the call gives {len(attribute.value)} {key} to a copy of {callee.name}, which has {expected[key]}"
                    )
                    yield WrongCall("INV20", message, key, "they are as `fold` wrote them for the body that it wrote")
            wrong = next((name for name in call.get("names", ()) if name[:1] != "%"), None)
            if wrong is not None:
                yield WrongCall("INV20", f"the name '{wrong}' that the call gives does not begin with %", "names", "")
            pairs = call.get("rename", ())
            if len(pairs) % 2 or "" in pairs or len(set(pairs[::2])) < len(pairs) // 2:
                message = "rename gives pairs of texts, none empty, each first one once"
                yield WrongCall("INV20", message, "rename", 'such as ["h.0", "h.1"] for what begins with h.0 in the body')
        if callee.name in self.folded:
            for facet in call.facets:
                if isinstance(facet, DECISIONS) and facet.keyword in self.held(callee.name):
                    message = f"the call holds the decision '{facet.keyword}', and ops of {callee.name} do"
                    hint = "what is decided alike for all ops of a copy stands on its call, else on the ops"
                    yield WrongCall("INV10", message, f"{facet.keyword}<", hint)

    def check_variants(self, shared: Collection[str]) -> None:
        """Variants of one block agree in all but decisions and layouts; what is ``shared`` and calls one is one."""
        blocks: dict[str, Func] = {}
        for func in self.funcs.values():
            copies = next((attribute for key, attribute in func.attributes if key == FOLDED), None)
            if copies is not None and (copies.kind is not AttrKind.INT or copies.value < 1):
                message = f"{FOLDED} of {func.name} is the number of its copies, at least 1"
                self.findings.add("INV20", message, func, about=FOLDED)
            block = next((attribute for key, attribute in func.attributes if key == VARIANT), None)
            if block is None:
                inner = next((op for op in func.ops if (c := self.callee(op)) and is_variant(self.funcs[c])), None)
                if inner is not None and func.name in shared:
                    callee = self.callee(inner)
                    message = f"{func.name} is called more than once and calls {callee}, which holds decisions"
                    self.findings.add("INV10", message, func, inner, about=callee, hint=f"it needs the attribute {VARIANT}")
                continue
            if block.kind is not AttrKind.STRING or func.name not in self.folded:
                message = f"{VARIANT} of {func.name} is the name of a block, beside {FOLDED}"
                self.findings.add("INV10", message, func, about=VARIANT)
                continue
            name = f"@{block.value}"
            one = blocks.setdefault(name, self.funcs[name] if name in self.folded else func)
            for fault in self.differences(one, func):
                message = f"{one.name} and {func.name} are of one block, but {fault}"
                self.findings.add("INV10", message, func, about=VARIANT, hint="variants differ in decisions and layouts alone")

    def differences(self, one: Func, other: Func) -> Iterator[str]:
        """What tells two variants apart that may not."""
        for what, values, others in (("arguments", one.args, other.args), ("results", one.results, other.results)):
            if [without_layout(value.type) for value in values] != [without_layout(value.type) for value in others]:
                yield f"their {what} have other types"
        if self.size(one.name) != self.size(other.name):
            (names, ops), (more, further) = self.size(one.name), self.size(other.name)
            yield f"the first has {ops} ops that assign {names} names, the second {further} that assign {more}"

    def callee(self, op: Op) -> str:
        """The folded function that ``op`` calls; empty for none."""
        name = op.get("callee", "") if op.name == "dnnc.call" else ""
        return name if name in self.folded else ""

    def held(self, name: str) -> set[str]:
        """Keywords of the decisions in function ``name``, those of folded functions that it calls included."""
        for func in self.inner_first(name, self.kinds):
            keywords = {facet.keyword for op in func.ops for facet in op.facets if isinstance(facet, DECISIONS)}
            self.kinds[func.name] = keywords.union(*(self.kinds.get(self.callee(op), ()) for op in func.ops))
        return self.kinds[name]

    def size(self, name: str) -> tuple[int, int]:
        """How many names function ``name`` assigns and how many ops it has, regions included, calls of folded functions
        expanded."""
        for func in self.inner_first(name, self.sizes):
            self.sizes[func.name] = self.count(func.ops, calls=True)
        return self.sizes[name]

    def inner_first(self, name: str, known: Collection[str]) -> Iterator[Func]:
        """The folded functions that ``name`` calls, then itself, but those ``known``. Of a cycle of calls, which INV12 tells,
        each once."""
        todo, met = ([name] if name not in known else []), {name}
        while todo:
            func = self.funcs[todo[-1]]
            inner = next((c for op in func.ops if (c := self.callee(op)) and c not in known and c not in met), "")
            if inner:
                met.add(inner)
                todo.append(inner)
            else:
                todo.pop()
                yield func

    def count(self, ops: Iterable[Op], calls: bool) -> tuple[int, int]:
        """Names and ops of a body; calls stand for what they call in the body itself, not in regions."""
        names = number = 0
        for op in ops:
            callee = self.callee(op) if calls else ""
            if callee:
                inner = self.sizes.get(callee, (0, 0))
            else:
                inner = (sum(bool(value.name) for value in op.results), 1)
                for _, region in op.regions:
                    body = self.count(region.ops, calls=False)
                    inner = (inner[0] + body[0] + sum(bool(value.name) for value in region.args), inner[1] + body[1])
            names, number = names + inner[0], number + inner[1]
        return names, number
