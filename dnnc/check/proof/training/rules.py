"""What follows on the members of a training step beside the rules of inference: the mean over the microbatches of replicas."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from dnnc.check.proof.facts import Part, whole
from dnnc.check.proof.model import Application, Model
from dnnc.check.proof.programs import StageText, Unit
from dnnc.check.proof.rules import Operand, OpRule, OpRules
from dnnc.check.proof.stage import StageProof
from dnnc.check.proof.training.units import is_replicated
from ir.core.types import Partial
from ir.ops.grads import ACCUMULATE


class _MeanOfReplicas(OpRule):
    """``grad.accumulate`` on replicas: each adds up the microbatches whose turn it is and divides by all of the step, so each
    has a term of the mean."""

    def apply(self, unit: Unit, operands: Sequence[Operand | None]) -> Iterator[tuple[int, Part]]:
        (operand,) = operands
        found = self.plain(unit, [operand[0]]) if operand is not None else None
        if operand is None or found is None or operand[1].placements != whole(self.kind.mesh):
            return
        number = self.families.number(("turns", self.application.number))
        yield found[0], Part(self.application.results[0], (Partial("sum"),), number)


class _RulesOfReplicas(OpRules):
    def of(self, application: Application) -> OpRule:
        if application.op.name == ACCUMULATE and application.number not in self._rules:
            kind = self.kind(application)
            self._rules[application.number] = _MeanOfReplicas(self.model, application, kind, self.families)
        return super().of(application)


def step_proof(model: Model, text: StageText) -> StageProof:
    """The derivation of a stage of a training step."""
    proof = StageProof(model, text)
    if is_replicated(text.stage):
        proof.rules = _RulesOfReplicas(model, proof.boxes, proof.families)
    return proof
