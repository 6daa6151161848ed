"""Faults of pipelines and their text, and of the passes of one file: ``schedule`` and ``place``. Codes 30.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class PipelineSyntax(Fault, code="E3005"):
    """The text of a pipeline is not a list of passes, separated by commas, with their options in braces."""

    message = "pipeline text cannot be read: found {found}, expected {expected}"
    hint = "for example: cost,partition{{objective=throughput}}"
    found: str
    expected: str


class PipelineWithOptions(Fault, code="E3006"):
    """A pipeline of several passes has no options of its own; each of its passes has."""

    message = "'{name}' is a pipeline, not a pass, and takes no options"
    hint = "it is: {passes}"
    name: str
    passes: str


class UnknownPass(Fault, code="E3007"):
    """No pass or pipeline has this name; ``dnnc passes`` lists them."""

    message = "unknown pass '{name}'"
    hint = "{near}"
    name: str
    near: str


class EarlierName(Fault, code="E3015"):
    """An earlier version had a pass or a pipeline of this name. Exit code 2; the hint is the text to write instead, with which
    the same plans are searched."""

    message = "'{name}' is of an earlier version"
    hint = "write {instead}"
    name: str
    instead: str


class UnknownOption(Fault, code="E3008"):
    """The pass has no option of this name."""

    message = "pass '{step}' has no option '{option}'"
    hint = "{near}"
    step: str
    option: str
    near: str


class OptionTwice(Fault, code="E3009"):
    """One option of a pass has two values."""

    message = "option '{option}' is given twice"
    option: str


class OptionValue(Fault, code="E3010"):
    """The value of an option is of another kind than the option."""

    message = "option '{option}' of '{step}': {reason}"
    option: str
    step: str
    reason: str


class OptionsTogether(Fault, code="E3011"):
    """The options of a pass are fine one by one and do not fit together."""

    message = "pass '{step}': {reason}"
    step: str
    reason: str


class RunLineQuotes(Fault, code="E3012"):
    """The RUN line at the head of an IR text cannot be split into words as a shell does it."""

    message = "the RUN line cannot be read: {reason}"
    hint = "quote the pipeline as a shell takes it, or name the passes with --passes"
    reason: str


class RunLineCount(Fault, code="E3013"):
    """The RUN line at the head of an IR text names no pipeline, or several."""

    message = "the RUN line names {count} pipelines, expected one"
    count: int


class PassOutOfOrder(Fault, code="E3014"):
    """A pass needs a property that the module lacks and no pass before it in the pipeline establishes; nothing has run."""

    message = "'{step}' needs '{missing}' ({meaning}), {reason}"
    hint = "{remedy}"
    step: str
    missing: str
    meaning: str
    reason: str
    remedy: str


class OrderOverMemory(Fault, code="E3020"):
    """In the order of work of a training step a device holds more than it has memory, and no other plan was found to fit."""

    message = "in the order {order} it holds {peak} bytes and has {limit}: {over} bytes too many"
    hint = "--recompute stage, smaller microbatches or another --schedule need less"
    order: str
    peak: int
    limit: int

    @property
    def over(self) -> int:
        return self.peak - self.limit


class NoSchedule(Fault, code="E3021"):
    """A plan text that should state the order of work has no schedule."""

    message = "it states no schedule"


class ScheduleMisfit(Fault, code="E3022"):
    """A schedule that was edited does not do the work of the plan's stages, or not in an order that can run."""

    message = "the schedule does not fit the plan's stages: {problem}"
    hint = "give the rows what the stages do, or delete the schedule from the text: it is then made anew"
    problem: str


class SlowSchedule(Fault, code="W3023"):
    """A schedule that was edited takes longer than the one that the compiler would make."""

    message = "these rows take {seconds:.4g} s per {unit}, those of the compiler {best:.4g} s"
    hint = "delete the schedule from the text to have it made anew"
    seconds: float
    unit: str
    best: float


class FalseBound(Fault, code="E3024"):
    """The value of a plan that was read is below its lower bound: the bound was edited, or what it was proven of."""

    message = (
        "the plan states that no plan is below {bound!r} s, and takes {value!r} s itself: the bound was edited, or the model, "
        "its costs or the machines were after it was proven"
    )
    hint = "take the bound out, or plan again"
    bound: float
    value: float


class OtherStages(Fault, code="E3025"):
    """The plan lists other stages than the ops are in."""

    message = "the plan has stages {listed}, the ops are in {count}"
    hint = "run 'partition' again"
    listed: str
    count: int


class FewerBuffers(Fault, code="W3026"):
    """A device has no memory for all buffers of tensors that wait while stages between work on other microbatches."""

    message = (
        "with {spare} bytes of buffers for tensors that pass over stages it needs {needed} bytes on {device}, "
        "which has {limit}: {over} bytes too many"
    )
    hint = "it runs with fewer buffers, but the stages wait for each other more often than predicted"
    spare: int
    needed: int
    device: str
    limit: int

    @property
    def over(self) -> int:
        return self.needed - self.limit


class NotBetter(Fault, code="E3030"):
    """A pass searched for a plan below the one that is known, and there is none."""

    message = "no plan is better than the incumbent, and none is below {bound!r} s"
    bound: float


class StagesCrowded(Fault, code="E3028"):
    """Each stage takes devices of its own; there are enough for each stage alone, not for all at once."""

    message = "the {stages} stages do not all find a device of their own: {wanted}"
    hint = "use fewer stages or more devices"
    stages: int
    wanted: str


class NoProver(Fault, code="E3031"):
    """The pass ``validate`` asks a proof of the command that runs it. ``opt`` and ``import`` have it."""

    message = "nothing here proves programs"
    hint = "run 'validate' by 'dnnc opt'; 'dnnc compile --prove' proves the whole build, with its files"
