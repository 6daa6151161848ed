"""How ``dnnc check`` fails, and why it cannot compare. Codes E12.."""

from __future__ import annotations

from dnnc.engines.onnxruntime.errors import REFUSED_HINT
from ir.core.diagnostics import Fault


class StageDiverges(Fault, code="E1201"):
    """A stage does not compute what the unsplit model computes on the same inputs."""

    message = (
        "stage {stage} is the first that diverges, at {kind} '{tensor}' ({type}): {found}difference {difference:.3g}, "
        "allowed {allowed:.3g}; on the inputs that the unsplit model gives it{inside}"
    )
    hint = (
        "if the model bears such a difference, --tolerance allows it; else it is a fault of the build: 'dnnc check --json' "
        "lists every tensor for a report"
    )
    stage: int
    kind: str
    tensor: str
    type: str
    difference: float
    allowed: float
    reason: str
    origin: str

    @property
    def found(self) -> str:
        return f"{self.reason}; " if self.reason else ""

    @property
    def inside(self) -> str:
        return f"; the first value that differs inside it is '{self.origin}'" if self.origin else ""


class ChainDiverges(StageDiverges, code="E1202"):
    """Each stage computes what the unsplit model computes, up to rounding. In the chain of stages these differences add up."""

    message = (
        "stage {stage} is the first that diverges, at {kind} '{tensor}' ({type}): {found}difference {difference:.3g}, "
        "allowed {allowed:.3g}; only in the chain of stages, where differences add up{inside}"
    )
    stage: int
    kind: str
    tensor: str
    type: str
    difference: float
    allowed: float
    reason: str
    origin: str


class NothingCompared(Fault, code="E1203"):
    """No tensor could be compared with the unsplit model. A check that compares nothing proves nothing and fails."""

    message = "nothing was compared, so nothing is proven: {reason}"
    hint = "give inputs for which the model computes values that can be compared: --inputs FILE.npz"
    reason: str


class BuildWithoutWeights(Fault, code="E1204"):
    """The build was written without weights, so its stages cannot run."""

    message = "this build was written without weights, so it cannot be checked"
    hint = "compile it again with weights"


class ModelRefused(Fault, code="E1205"):
    """ONNX Runtime refuses the unsplit model."""

    message = "the model cannot be run, so there is nothing to compare: {reason}"
    hint = REFUSED_HINT
    reason: str


class ModelDoesNotRun(Fault, code="E1206"):
    """The unsplit model fails on the inputs of the check, for example because they are random and it expects others."""

    message = "the unsplit model does not run on these inputs, so there is nothing to compare with:{lines}"
    hint = "{advice}"
    reasons: tuple[str, ...]
    advice: str = "give inputs that the model accepts: --inputs FILE.npz"

    @property
    def lines(self) -> str:
        return "".join(f"\n  {reason}" for reason in self.reasons)


class UnknownInput(Fault, code="E1207"):
    """The unsplit model reads an input that the build does not have: the model was changed since."""

    message = "{model} has an input '{input}' that the build does not know"
    hint = "compile the model again"
    model: str
    input: str


class FileChanged(Fault, code="E1208"):
    """A file of the unsplit model was written to during the check."""

    message = "the file '{file}' was changed while it was used"
    hint = "run 'dnnc check' again when nothing writes to it"
    file: str


class WeightTruncated(Fault, code="E1209"):
    """The file of a weight ends before the weight does."""

    message = "{present} of {size} bytes are there"
    present: int
    size: int


class StageDoesNotRun(Fault, code="E1210"):
    """ONNX Runtime fails on a stage, for want of memory or through a fault of the build. It runs the unsplit model."""

    message = "the stage does not run, though the unsplit model does: {reason}"
    hint = "{advice}"
    reason: str
    advice: str


class RunDiverges(StageDiverges, code="E1211"):
    """An output of the run on a cluster is not the one that the unsplit model computes."""

    message = (
        "{kind} '{tensor}' ({type}) of the run on the cluster: {found}difference {difference:.3g}, "
        "allowed {allowed:.3g}{inside}"
    )
    hint = "'dnnc check --emulate' finds the first stage that diverges; where none does, the fault is of hosts or between them"
    stage: int
    kind: str
    tensor: str
    type: str
    difference: float
    allowed: float
    reason: str
    origin: str


class TokenDiverges(Fault, code="E1221"):
    """The stages of a language model draw another token than the unsplit model finds most likely."""

    message = (
        "{answer} ({length}): {reason}, for the unsplit model less likely by {difference:.3g} of the range of logits, allowed "
        "{allowed:.3g}"
    )
    hint = "if rounding alone explains it, --tolerance allows it"
    answer: str
    length: str
    reason: str
    difference: float
    allowed: float


class LogitsDiverge(Fault, code="E1222"):
    """The stages of a language model compute other logits than the unsplit model."""

    message = "{answer} ({length}): {reason} by {difference:.3g} of their range, allowed {allowed:.3g}"
    hint = "if rounding alone explains it, --tolerance allows it"
    answer: str
    length: str
    reason: str
    difference: float
    allowed: float


class PromptsAreDrawn(Fault, code="E1223"):
    """A build of a language model that was compiled with --context is checked on random prompts, which only --seed changes."""

    message = "a build that was compiled with --context is checked on random prompts"
    hint = "leave it out; --seed draws other prompts"


class Refuted(Fault, code="E1212"):
    """The programs of a build do what follows from the model by no rule of ``dnnc check --prove``."""

    message = "refuted: {reason}{where}"
    hint = "it is a fault of the build: 'dnnc check --prove --json' says more; compile the model again"
    reason: str
    origin: str

    @property
    def where(self) -> str:
        return f" ({self.origin})" if self.origin else ""


class NotProven(Fault, code="E1213"):
    """The proof does not know enough of an op. The build may be right; ``dnnc check`` compares it on inputs."""

    message = "not proven: {reason}{where}"
    hint = "'dnnc check' without --prove compares the build with the model on some inputs"
    reason: str
    origin: str

    @property
    def where(self) -> str:
        return f" ({self.origin})" if self.origin else ""


class PlanRefuted(Fault, code="E1214"):
    """A value, bound, gap or number of a stage that a plan claims is not what is counted again from its ops and machines."""

    message = "{violation}"
    hint = "{advice}"
    violation: str
    advice: str


class NoPlanToVerify(Fault, code="E1215"):
    """``dnnc verify-plan DIR`` is given a directory whose plan.ir has no plan, or no machines."""

    message = "it has no {missing}"
    hint = "'dnnc compile MODEL -t TOPOLOGY -o DIR' writes a directory with both"
    missing: str


class PlanOfOpenSizes(Fault, code="E1220"):
    """A build that takes any size in a range was planned for the largest; its programs have no numbers to count."""

    message = (
        "the sizes of this build are open ({dimension} from {least} to {most}), so its seconds and bytes cannot be counted"
    )
    hint = "verify the plan for the largest size: compile with --dim {dimension}={most} --mesh none --plan-only"
    dimension: str
    least: int
    most: int


class PlanMalformed(Fault, code="E1216"):
    """The plan.json of a directory is no plan."""

    message = "it is no plan: expected an object with the list 'stages'"
    hint = "compile the model again"
