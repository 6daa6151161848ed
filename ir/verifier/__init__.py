"""The verifier: the invariants of every module, after a parse and after every pass. Each fault names the invariant it breaks.

Names and symbols
- INV01  The name of a value begins with ``%``, that of a symbol with ``@``; only an operand or an unused result has none.
- INV02  Symbols have distinct names; a module has at most one topology, one schedule and one plan.
- INV03  A value is assigned once in its function, regions included; arguments count as assignments.
- INV04  An operand is a resource, or is assigned before its use, in the same or an enclosing body.
- INV05  A result of a function or stage, or a yield of a region, is a resource, or is assigned in its body or an enclosing one.
- INV06  A symbol that is referred to exists and is of the right kind: resource, function, mesh, stage.
Types, attributes, facets
- INV07  Dimensions are >= 0; a layout has one placement for each axis of its mesh and shards dimensions that exist; keys of
         maps are integers or texts; nesting is limited.
- INV08  Attributes are sorted, with distinct keys; a value is of its kind; integers have 64 bits; dense data fits its type.
- INV09  Facets are sorted, at most one of a kind, on an op or a resource as their kind wants, with numbers in range.
- INV10  A function that is called more than once, directly or through its callers, holds no decisions (group, stage, shard),
         unless it is a *variant*: beside ``fold.copies`` it has ``fold.variant``, the name of its block. A decision in a
         variant holds for all of its copies and is no group: the outermost call of a copy lists the ``groups`` of its ops, or
         holds the group of all of them. Variants of one block differ in decisions and layouts only: they have the same types
         of arguments and results, and equally many ops and names. A call of a folded function holds no decision of a kind
         that an op inside holds.
- INV11  An op of a dialect that the verifier was given is defined, and agrees with its definition in arity, attributes and
         regions. Ops of other dialects, and those that a dialect calls opaque, are not checked.
- INV12  Calls form no cycle; a call and its function agree in the number and types of operands and results.
Data and machines
- INV13  The data of a resource fits its type; an external file is in the model's folder; a digest is ``sha256:`` and 64 digits.
- INV14  In a topology, device types, points (devices, hosts, switches) and links each have distinct names; what they refer to
         exists; numbers are in range; the links of a route connect its ends.
- INV15  A mesh has axes with distinct names and sizes >= 1, and as many distinct devices of the topology as the product of the
         sizes. Shares, one for each member along an axis, are from 1 to 1000, in lowest terms.
Programs and plans
- INV16  Stages are numbered 0, 1, .. in order; their devices are those of the topology, of their mesh and of the plan.
- INV17  A channel is one ``comm.send`` and one ``comm.recv`` of equal parts, in two stages that name each other as peer. A
         send in phase F leads to a stage of a higher number, one in I or W to a lower one. What is sent in U is received in
         U, and only that; no value is received in an earlier phase than it is sent.
- INV18  A schedule has at most one row for each device of the topology, of actions of existing stages, with microbatches in
         range.
- INV19  A plan numbers its stages 0, 1, ..; the devices of a stage are of its type, and those of its mesh; ops are in stages of
         the plan. Each group of sequences is served by a replica, and each replica serves one, where a stage says it
         (``serves``). The bound is at most the value; backward and synchronisation seconds of a stage are at most all of them.
Copies of folded blocks
- INV20  ``fold.copies`` is at least 1. A call has as many ``names`` as the ops of its function assign, and as many ``paths``,
         ``nodes``, ``scopes`` and ``groups`` as it has ops, where calls of folded functions count as the ops they stand for.
         Names begin with %. ``rename`` is pairs of texts, none empty, with distinct first ones.
Sharded stages
- INV21  In a stage on a mesh, layouts are on that mesh and arguments are whole. An op has a strategy for each axis, and the
         layouts of its operands and results are those of the strategy; an op without one runs whole, as do regions. A
         resource has one layout: that of its type, or of the ``comm.reshard`` that all its readers read. A collective,
         ``comm.slice`` or ``comm.term`` changes the placement on its axis as its kind says, and nothing else. A stage without
         a mesh has none of these, except a ``comm.all_reduce`` in phase U between all its devices, which are replicas. No
         stage has a ``comm.part``, a ``comm.member`` or a ``comm.reshard`` of anything but a resource. Sums of one ``bucket``
         are consecutive, have one axis, reduction and element type, and none reads another.
Rows
- INV22  The rows of a schedule hold each action of the stages once on each of their devices (once per microbatch if the rows
         are not periodic), the same for all members of a mesh, in an order that does not deadlock (``ir/ops/rows.py``).
Programs
- INV23  Each device of a stage that has programs runs one of them. Its messages and collectives are those of the stage, in its
         order, or, where the program consists of ``dnnc.segment``, in one order that all programs of the stage have; other
         conversions are in no program. Types have no layouts. At the border of the stage, a local type is that of the part of
         ``of`` (of a result: of its type) on each device of the program. A ``comm.member`` has a value for each device; a
         ``comm.part`` is of a resource, and ``of`` has its type; a collective is along an axis of the stage's mesh.
States
- INV24  A state becomes a result of the entry function, of its type, that no other state becomes. Ops that read it, and the op
         that makes what it becomes, are in one stage, which returns that result.

Where a module leaves out the ops of a stage, those of its first program say its messages (INV17, INV22).

``values`` judges what a single type, attribute or facet says (INV07 to INV09), ``orders`` the rows of schedules (INV22),
``locals`` programs (INV23); ``findings`` collects the faults. Time is linear in the size of the module.
Positions come from the source map of a parse when it is given.
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
from ir.verifier.states import check_states
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
    check_states(findings)
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
