"""``dnnc.plan``: the plan of a model for machines, and the build that it writes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from dnnc.api.build import Build
from dnnc.api.faults import NotMachines
from dnnc.api.model import ModelFile, model_file
from dnnc.api.options import PathLike, PlanOptions, compile_options
from dnnc.api.terms import in_python, python_terms, warn
from ir.core.diagnostics import DiagnosticSink, UsageError
from ir.core.outcomes import Outcome
from ir.core.topology import Topology

if TYPE_CHECKING:
    from dnnc.compile.context import Progress
    from dnnc.compile.driver import PlannedModel
    from ir.core.module import Module, PlanStage
    from ir.core.module import Plan as PlanSymbol


@dataclass(frozen=True, eq=False)
class Plan:
    """A plan: which ops run on which device, and how good that is. ``print(plan)`` shows its table; in a notebook it shows its
    page.

    ``value``: seconds of what the objective counts: of throughput per microbatch of a stream, of latency one microbatch alone,
    of training a step. ``bound``: no plan is below it; ``gap``: how far the value may be above the best; ``status``:
    ``optimal`` or ``within-gap``."""

    _planned: PlannedModel
    _file: ModelFile

    @property
    def symbol(self) -> PlanSymbol:
        """The plan in the IR, with its certificate: how the bound was reached."""
        return self._planned.plan

    @property
    def module(self) -> Module:
        """The model in the IR, with every decision."""
        return self._planned.module

    @property
    def topology(self) -> Topology:
        return self._planned.topology

    @property
    def objective(self) -> str:
        return self.symbol.objective

    @property
    def value(self) -> float:
        return self.symbol.value

    @property
    def bound(self) -> float:
        return self.symbol.bound

    @property
    def gap(self) -> float:
        return self.symbol.gap

    @property
    def status(self) -> Outcome:
        return self.symbol.status

    @property
    def stages(self) -> tuple[PlanStage, ...]:
        """Each stage with its devices, predicted seconds and bytes."""
        return self.symbol.stages

    def __str__(self) -> str:
        from dnnc.report import idle_text, mesh_axes, plan_headline, shares_lines, stages_table, table_text

        table = table_text(stages_table(self.symbol, mesh_axes(self.module))) + shares_lines(self.module)
        lines = [table.rstrip("\n"), "", plan_headline(self.symbol).strip("\n"), idle_text(self.symbol, self.topology)]
        return in_python("\n".join(lines).rstrip("\n"))

    def _repr_html_(self) -> str:
        from dnnc.report.page import frame, page

        return frame(page(self.module))

    def __repr__(self) -> str:
        return f"<dnnc.Plan {self.objective} {self.value:.4g} s, bound {self.bound:.4g} s, {len(self.stages)} stages>"

    def write(self, folder: PathLike) -> Build:
        """Makes the programs and writes them into ``folder``, whole or not at all; an earlier build there is replaced. A plan
        that was made with ``plan_only`` writes the plan alone, which cannot be started."""
        from dnnc.engines.onnxruntime.write import check_target

        sink = self._planned.context.sink
        warned = len(sink.diagnostics)
        with python_terms(self._file.hidden):
            check_target(Path(folder))
            self._planned.write(Path(folder))
        warn(sink.diagnostics[warned:], self._file.hidden)
        return Build(Path(folder))


def plan(
    model: Any,
    *,
    machines: PathLike | Topology,
    dims: Mapping[str, int | str | range] | None = None,
    args: Sequence[Any] | Mapping[str, Any] | None = None,
    progress: Progress | None = None,
    **options: Unpack[PlanOptions],
) -> Plan:
    """Plans ``model`` for ``machines``::

        plan = dnnc.plan("model.onnx", machines="preset:local", dims={"batch": 8})
        print(plan)
        build = plan.write("build/model")

    ``model``: the path of an ONNX file, ``zoo:NAME``, an ``onnx.ModelProto``, or a ``torch.nn.Module`` with example arguments
    ``args`` (``dnnc.from_torch``). ``machines``: the path of a topology, ``preset:NAME``, or a ``Topology``. ``dims`` bind
    symbolic dimensions, by name or as ``INPUT.AXIS``: numbers, other names, or the ``range`` of sizes that a build takes.
    ``progress`` is called with what is done and with its share of the work, or None. ``options``: ``dnnc.PlanOptions``.

    Raises ``DnncError``: ``InvalidInput`` for a model or topology that cannot be read or planned, ``UsageError`` for options
    that make no sense, ``Infeasible`` where no plan fits. Warnings are ``DnncWarning``."""
    from dnnc.compile.driver import plan_model

    sink = DiagnosticSink()
    with python_terms():
        file = model_file(model, args)
        if not isinstance(machines, str | os.PathLike | Topology):
            raise UsageError(NotMachines(type(machines).__name__), where="machines")
        asked = compile_options(file.spec, dims, options)
    if not isinstance(machines, Topology):
        asked = replace(asked, topology=os.fspath(machines))
    topology = machines if isinstance(machines, Topology) else None
    say = progress or (lambda label, fraction: None)
    with python_terms(file.hidden):
        planned = plan_model(asked, machines=topology, nameless=bool(file.hidden), sink=sink, progress=say)
    warn(sink.diagnostics, file.hidden)
    if planned.interrupted:
        raise KeyboardInterrupt
    return Plan(planned, file)
