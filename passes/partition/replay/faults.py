"""Faults of stated plans: a plan that was edited or is of another model. Codes 34.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class MoreFaults(Fault, code="E3401"):
    """The first faults of a kind are told one by one, the others by their number."""

    message = "{count} {what}"
    count: int
    what: str


class OpInStages(Fault, code="E3402"):
    """Only an op that computes constants may be listed in several stages, each of which computes it for itself."""

    message = "op '{op}' is in stages {stages}"
    hint = "only what is computed of constants may be in several"
    op: str
    stages: str


class CopyMissing(Fault, code="E3403"):
    """An op reads what other stages compute for themselves, and its own stage does not."""

    message = "op '{op}' reads '{value}', which stages {stages} compute for themselves"
    hint = "list that op in this stage too"
    op: str
    value: str
    stages: str


class StrategyCount(Fault, code="E3404"):
    """An op has one strategy per axis of its mesh."""

    message = "op '{op}' ({kind}) has {strategies} strategies for {axes} axes"
    op: str
    kind: str
    strategies: int
    axes: int


class NoLayoutRule(Fault, code="E3405"):
    """Nothing is known about how this operator can be split."""

    message = "op '{op}' ({kind}) cannot be split"
    hint = "no layout rule is known for it: {whole}"
    op: str
    kind: str
    whole: str


class NoStrategy(Fault, code="E3406"):
    """The operator has no strategy of this name along an axis of this size."""

    message = "op '{op}' ({kind}) has no strategy '{strategy}' along {axis}, an axis of {size}"
    hint = "it has {named}"
    op: str
    kind: str
    strategy: str
    axis: str
    size: int
    strategies: tuple[str, ...]

    @property
    def named(self) -> str:
        return ", ".join(f"'{name}'" for name in self.strategies)


class StrategiesTogether(Fault, code="E3407"):
    """Each of the strategies exists for its axis; together they do not fit the op's dimensions."""

    message = "op '{op}' ({kind}) cannot be split by '{strategies}' on a mesh of {mesh}"
    hint = "together it has {known}"
    op: str
    kind: str
    strategies: str
    mesh: str
    known: str


class NoLayout(Fault, code="E3408"):
    """A weight or an output cannot have the layout that the plan states."""

    message = "{what} '{name}' cannot have the layout '{layout}' on a mesh of {mesh}"
    hint = "it can have {layouts}"
    what: str
    name: str
    layout: str
    mesh: str
    layouts: str


class SmallWeight(Fault, code="E3409"):
    """Small constants are never split."""

    message = "{what} '{name}' is small and stands whole on every device"
    what: str
    name: str


class NotOfStage(Fault, code="E3410"):
    """A stage states the layout of a weight that it does not read, or of an output that it does not make."""

    message = "the stage {verb} no {what} '{name}'"
    hint = "{near}"
    verb: str
    what: str
    name: str
    near: str


class StagesOverMemory(Fault, code="E3411"):
    """A stage of the plan needs more bytes than its devices have."""

    message = "{reason}"
    hint = "split more weights, or move ops to a stage with more devices"
    reason: str


class StrategiesOfOps(Fault, code="E3413"):
    """A plan on meshes lists one text of strategies per op."""

    message = "{strategies} strategies found for {ops} ops"
    strategies: int
    ops: int


class NoSync(Fault, code="E3414"):
    """The gradient of a weight cannot be summed by the method that the plan states."""

    message = "the gradient of '{weight}' cannot be synchronised by '{method}': {reason}"
    hint = "remove its line: all-reduce sums it"
    weight: str
    method: str
    reason: str


class DeviceTwice(Fault, code="E3416"):
    """A device stands in two places of the plan."""

    message = "device '{device}' {what}"
    hint = "{rule}"
    device: str
    what: str
    rule: str


class MeshShape(Fault, code="E3417"):
    """The axes of a mesh have names, at least two members each, and as many places together as the stage has devices."""

    message = "{reason}"
    hint = "axes multiply to the number of devices"
    reason: str


class OpTwice(Fault, code="E3418"):
    """An op is listed twice in one stage."""

    message = "op '{op}' is listed twice"
    op: str


class OpLeftOut(Fault, code="E3419"):
    """Each op of the model is in a stage of the plan; this one is in none."""

    message = "op '{op}' is in no stage"
    hint = "list it in a stage"
    op: str


class LossMissing(Fault, code="E3422"):
    """The plan is of a training step, and the model is given without the loss."""

    message = "the plan has the ops of a loss, and the model has no loss"
    hint = "give the loss that the plan was made with, such as --loss mse:OUTPUT"


class OtherModel(Fault, code="E3423"):
    """The model has few of the names that the plan lists: the plan was made for another one."""

    message = "it is a plan of another model: it names {named} {what}, of which this one has {present}"
    hint = "{known}, or plan this one anew"
    named: int
    what: str
    present: int
    known: str


class StageColonName(Fault, code="E3424"):
    """An item of a list is the number of a stage, a colon and a name."""

    message = "'{text}' found, 'STAGE:NAME' expected"
    text: str


class StageWithoutOp(Fault, code="E3425"):
    """A stage has a device, and no op is listed in it."""

    message = "stage {stage} has a device but no op"
    hint = "remove it or give it ops"
    stage: int


class ReplicasOfTypes(Fault, code="E3426"):
    """Replicas of a stage take turns, so their devices must be alike."""

    message = "its replicas are of different types: {types}"
    hint = "use devices of one type"
    types: tuple[str, ...]


class AveragesParted(Fault, code="E3428"):
    """Two ops read one running average that training moves, such as two calls of one layer. In different stages each would read
    a copy, which only the ops of its own stage move."""

    message = "op '{op}' reads the running average '{average}', which op '{other}' of stage {stages} reads too"
    hint = "list both in one stage: training moves the average"
    op: str
    average: str
    other: str
    stages: str


class WrongServing(Fault, code="E3429"):
    """Each turn of a stage, or group of a decoder's sequences, is of one of its replicas, each of which has one at least."""

    message = "the replicas of {what} are listed as '{listed}', and the stage has {replicas}"
    hint = "name a replica from 0 on for each of these, and each replica once at least"
    what: str
    listed: str
    replicas: int


class NoTurns(Fault, code="E3431"):
    """Replicas have unlike turns in plans for the throughput of inference: in training each adds gradients of as many
    microbatches, and one sample alone has no turns."""

    message = "it says which of its replicas have which turns, and the plan is for {objective}"
    hint = "leave out 'serves': each replica has one turn"
    objective: str


class TurnsRarelyMeet(Fault, code="E3433"):
    """Links between replicas have buffers for all turns until those of all stages are back at their first ones."""

    message = "the turns of all stages meet again after {round} microbatches, expected after {most} at most"
    hint = "give stages as many turns as others, or a multiple"
    round: int
    most: int


class TurnsOfSharedDevices(Fault, code="E3432"):
    """Where replicas of a stage have unlike turns, each stage has devices of its own."""

    message = "its replicas have unlike turns, but stages {one} and {other} share devices"
    hint = "give all stages devices of their own, or replicas one turn each"
    one: int
    other: int
