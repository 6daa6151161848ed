"""What the members of lowered stages run, whether or not ``localize`` ran."""

from __future__ import annotations

from ir.core.module import Module, Program, Stage
from passes.framework.base import PassContext
from passes.meshes import LocalProgram
from passes.meshes import local_programs as programs_of
from passes.programs.localize import LocalizePass


def localized(module: Module) -> Module:
    """The module with its programs."""
    return module if module.first(Program) else LocalizePass().run(module, PassContext())


def local_programs(module: Module, stage: Stage) -> tuple[LocalProgram, ...]:
    """What each member of ``stage`` runs."""
    return programs_of(localized(module), stage)


__all__ = ["local_programs", "localized"]
