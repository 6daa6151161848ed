"""The verifier: what every module satisfies, after a parse and after every pass. Each fault names the invariant it breaks.

Names and symbols
- INV01  A value's name begins with ``%``, a symbol's with ``@``; only an operand or a dropped result may be absent.
- INV02  Symbols have distinct names; a module has at most one topology, one schedule and one plan.
- INV03  A value is assigned once in its function, regions included; arguments count as assignments.
- INV04  An operand is assigned before its use, in the same or an enclosing body, or is a resource.
- INV05  Results of a function or stage and yields of a region are assigned in its body (or enclosing ones), or are resources.
- INV06  A symbol that is referred to exists and is of the right kind: resource, function, mesh.
Types, attributes, facets
- INV07  Types make sense: dimensions >= 0, a layout has one placement for each axis of its mesh and shards dimensions that
         exist, map keys are integers or texts; nesting is limited.
- INV08  Attributes are sorted with distinct keys; a value is of its kind; integers have 64 bits; dense data fits its type.
- INV09  Facets are sorted, one of a kind, each where it belongs (on ops or on resources), with numbers in range.
- INV10  A function that is called more than once holds no decisions (group, stage, shard), nor does what it calls,
         unless it is a *variant*: ``fold.variant``, beside ``fold.copies``, names its block. What stands in it was decided
         alike for all its copies; groups never are: the outermost call of a copy gives them (``groups``) or holds the one
         of all its ops. Variants of one block differ in decisions and layouts alone: arguments and results have the same
         types, and as many ops assign as many names. A call of a folded function holds no decision of a kind that an op
         inside holds.
- INV11  An op of a dialect that the verifier was given exists, and agrees with its definition: arity, attributes, regions. An
         op of another dialect passes, as does one that its dialect calls opaque.
- INV12  Calls form no cycle, and agree with the function they call in number and types.
Data and machines
- INV13  A resource's data fits its type; an external file stays in the model's folder; a digest is ``sha256:`` and 64 digits.
- INV14  Device types, devices, hosts, switches and links of a topology have distinct names, what they refer to exists,
         numbers are in range, and a route's links connect its ends.
- INV15  A mesh has axes of size >= 1 with distinct names, as many distinct devices as places, all of the topology; shares are
         from 1 to 1000, in lowest terms, one for each member along an axis.
Programs and plans
- INV16  Stages are numbered 0, 1, .. in order; their devices are those of the topology, of their mesh and of the plan.
- INV17  A channel is one ``comm.send`` and one ``comm.recv`` of the same type in the two stages that name each other as
         peer. A ``send`` in phase F leads to a stage of higher number, one in I or W to one of lower number; what is sent in
         U, and nothing else, is received in U. No value is received in an earlier phase than it is sent.
- INV18  A schedule has a row per device of the topology, of actions of existing stages, with microbatches in range.
- INV19  A plan numbers its stages 0, 1, .., on devices of the stated type, those of its mesh where it has one; ops are in
         stages that it has; its bound is no greater than its value, a part of a stage's seconds no greater than all.
Copies of folded blocks
- INV20  ``fold.copies`` is at least 1. What a call says of its copy fits the function that it calls: as many names as the
         function's ops assign and as many paths, nodes, scopes and groups as it has ops, with the calls of folded functions
         inside it counted as what they stand for. Names begin with %. A renaming is pairs of texts, each first one once.
Sharded stages
- INV21  In a stage on a mesh, layouts are on that mesh and an op says a strategy for each axis; its operands lie as they want
         them, its results as they make them. An op that says none runs whole, as do regions. A resource is kept in one way:
         as its type says, or the ``comm.reshard`` that all its readers then read. A collective,
         ``comm.slice`` or ``comm.term`` along an axis changes the placement on that axis as its kind says, and nothing else. A
         stage without a mesh has none of these, but for a ``comm.all_reduce`` in phase U between all its devices, which are
         replicas. No stage has a ``comm.part``, a ``comm.member`` or a ``comm.reshard`` of anything but a resource. Sums of one
         ``bucket`` stand side by side, are along one axis, of one reduction and element type, and none reads another.
Rows
- INV22  The rows of a schedule, beside the programs of its stages, hold each action of these on each of their devices once (of
         rows that are not periodic, for each microbatch), equal ones for the members of a mesh, in an order that does not
         deadlock (``ir/ops/rows.py``).
Programs
- INV23  Each device of a stage that has programs runs one of them. All programs of a stage have its messages and
         collectives in its order. Types are without layouts, and where a part of a tensor crosses the border, the local
         type is that of the part of ``of`` (of a result: of its type) on each device of the program. A ``comm.member`` lists a
         value for each. A ``comm.part`` is of a resource, as that is; a collective is along an axis of the
         stage's mesh; other conversions are in no program.

Time is linear in the size of the module. Positions come from the source map of a parse when it is given.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ir.core.diagnostics import Diagnostic, InvalidInput
from ir.core.module import Module
from ir.ops.grads import DIALECTS
from ir.ops.opdefs import Dialects
from ir.verifier.collectives import check_collectives
from ir.verifier.decisions import check_decisions
from ir.verifier.findings import Findings
from ir.verifier.locals import check_locals
from ir.verifier.machines import check_machines
from ir.verifier.orders import check_orders
from ir.verifier.programs import check_programs
from ir.verifier.strategies import check_strategies
from ir.verifier.symbols import check_symbols

if TYPE_CHECKING:
    from ir.text.parser import SourceMap


def verify(module: Module, source_map: SourceMap | None = None, *, dialects: Dialects = DIALECTS) -> list[Diagnostic]:
    """Every invariant that ``module`` breaks, in the order of the module; empty when it is valid. ``dialects`` define ops."""
    findings = Findings(module, source_map, dialects)
    check_symbols(findings)
    check_machines(findings)
    check_programs(findings)
    check_decisions(findings)
    check_collectives(findings)
    check_strategies(findings)
    check_orders(findings)
    check_locals(findings)
    return findings.sorted()


def load_module(text: str, where: str = "", *, dialects: Dialects = DIALECTS) -> Module:
    """The valid module that ``text`` spells; ``dialects`` define its ops. Raises InvalidInput with every fault of syntax or,
    when there is none, every broken invariant, at its line."""
    from ir.text.parser import parse

    result = parse(text, where)
    diagnostics = verify(result.module, result.source_map, dialects=dialects)
    if diagnostics:
        raise InvalidInput(diagnostics)
    return result.module


__all__ = ["load_module", "verify"]
