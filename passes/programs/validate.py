"""Validate: whether the programs of all members compute the model, for all inputs.

The proof shares no code with the passes and is given by the driver (``PassContext.prove``). The module stays as it is. Weights
are what ``comm.part`` says of them: their bytes are those of a build, which ``dnnc check --prove`` reads.
"""

from __future__ import annotations

from dataclasses import dataclass

from ir.core.diagnostics import InvalidInput, UsageError
from ir.core.module import Module, Program, Stage
from passes.framework.base import Pass, PassContext
from passes.framework.faults import NoProver
from passes.graph.faults import NoProgram, NoStages


@dataclass(frozen=True)
class ValidatePass(Pass):
    """Show for all inputs that the programs compute the model."""

    name = "validate"

    def run(self, module: Module, context: PassContext) -> Module:
        """Raises InvalidInput for a module without programs, UsageError where there is nothing that proves, and CheckFailed
        for programs that are refuted or not proven."""
        stages = [stage.name for stage in module.of_type(Stage)]
        if not stages:
            raise InvalidInput(NoStages(), where=module.name)
        with_programs = {program.stage for program in module.of_type(Program)}
        for stage in stages:
            if stage not in with_programs:
                raise InvalidInput(NoProgram(stage), where=module.name)
        if context.prove is None:
            raise UsageError(NoProver(), where=self.name)
        context.progress("prove the programs", None)
        context.count(self.name, **context.prove(module))
        return module
