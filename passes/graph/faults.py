"""Faults that several passes share: what a module lacks, and options with values that they cannot have. Codes 31.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class NoTopology(Fault, code="E3101"):
    """The pass needs the machines, and the module describes none."""

    message = "the module has no topology"
    hint = "give one with -t"


class NotAChoice(Fault, code="E3103"):
    """An option of a pass has a value that is none of its choices."""

    message = "{option} is '{value}', expected {expected}"
    option: str
    value: str
    expected: str


class NotInRange(Fault, code="E3104"):
    """An option of a pass has a number that makes no sense."""

    message = "{option} is {value}, expected {expected}"
    option: str
    value: float
    expected: str


class NoPlacedPlan(Fault, code="E3110"):
    """The order of work and the memory of devices are those of a plan whose stages have devices; the module has none."""

    message = "the module has no placed plan"
    hint = "run 'partition' and 'place' first"


class NoStages(Fault, code="E3111"):
    """The module holds no programs of stages."""

    message = "the module has no stages"
    hint = "run 'lower'"


class NoScheduleToRun(Fault, code="E3112"):
    """A simulation follows the rows of a schedule; the module has no plan or no schedule."""

    message = "the module has no schedule to simulate"
    hint = "run the pass schedule, behind partition and place or shard"


class Deadlock(Fault, code="E3113"):
    """The rows of a schedule wait for each other in a circle."""

    message = "{reason}"
    reason: str


class TooManyActions(Fault, code="E3114"):
    """So many microbatches would take the simulation too long."""

    message = "{microbatches} microbatches have {actions} actions; at most {most} are followed"
    hint = "follow up to {enough} microbatches: a stream soon repeats itself"
    microbatches: int
    actions: int
    most: int
    enough: int


class OpInNoStage(Fault, code="E3115"):
    """Every op of a plan belongs to a stage; this one says none."""

    message = "the op is in no stage"
    hint = "run 'partition' (or replay a plan) before 'lower'"


class StagesWithHoles(Fault, code="E3116"):
    """Stages are numbered 0, 1, 2, ..; a number below the highest has no op."""

    message = "{holes} no op, but stage {last} has"
    hint = "number the stages without holes"
    holes: str
    last: int


class ReadsUnreachable(Fault, code="E3117"):
    """A stage reads what only a later stage makes (an earlier one, of gradients): the pipeline would wait for itself."""

    message = "stage {reader} reads {value}, which stage {maker} makes ({op})"
    hint = "move one of the two ops: {rule}"
    reader: int
    value: str
    maker: int
    op: str
    rule: str


class NoRoute(Fault, code="E3118"):
    """No chain of links joins the two points of the topology."""

    message = "no links lead from {source} to {target}"
    source: str
    target: str


class BrokenRoute(Fault, code="E3119"):
    """A route that the topology states leads over a link that does not begin where the link before it ends."""

    message = "the route from {source} to {target} breaks at the link {link}"
    source: str
    target: str
    link: str


class TooManyRoutes(Fault, code="E3120"):
    """To find the routes between so many devices would take too long."""

    message = "{devices} devices and {links} links have too many routes: more than {most} steps to find them"
    hint = "describe fewer devices; devices that are alike, on one host and one link, are cheap"
    devices: int
    links: int
    most: int


class NoMeshAxis(Fault, code="E3121"):
    """Members of a mesh axis must reach each other, and two of them do not."""

    message = "no mesh axis{name}: {reason}"
    reason: str
    name: str = ""


class LostOrder(Fault, code="E3122"):
    """A folded program says in an attribute where its ops stood before; the attribute was changed."""

    message = "attribute '{attribute}' of {program} does not say where its {ops} ops stood"
    hint = "remove the attribute: the ops then stay in the order of their calls"
    attribute: str
    program: str
    ops: int


class TooManyOps(Fault, code="E3123"):
    """A folded text is short, and its calls expand to more ops than can be held."""

    message = "the blocks expand to more than {most:,} ops"
    most: int


class NamesClash(Fault, code="E3124"):
    """Two calls of a folded function give their copies the same name."""

    message = "{name} is assigned twice in {program} when its calls are expanded"
    hint = "give each call of a folded function 'names' that nothing else has"
    name: str
    program: str


class CallsItself(Fault, code="E3125"):
    """A function calls itself, directly or over others; it cannot be expanded."""

    message = "{function} calls itself"
    function: str


class CallMisfit(Fault, code="E3126"):
    """The attributes of a call list the names, locations or groups of its copy, and their number is not that of the block."""

    message = "{call} calls {block}, but gives its copy another number of names, locations or groups than the block has"
    hint = "leave the attributes of a call as fold wrote them, or remove them all"
    call: str
    block: str


class ResultMisnamed(Fault, code="E3127"):
    """A call names its result otherwise than its attribute ``names`` does."""

    message = "the call's result {result} is {name} in its copy of {block}"
    hint = "name it in the call's attribute 'names' as its result is named"
    result: str
    name: str
    block: str


class TakesOtherOps(Fault, code="E3128"):
    """The text of a stage names a range of ops of the model that is not there, or that it has already taken."""

    message = "{op} takes ops {first} to {last}, and {stage} has {ops} ops of {entry}, each once"
    hint = "take the stages out of the text, and make them again with 'dnnc opt --passes lower'"
    op: str
    first: int
    last: int
    stage: str
    ops: int
    entry: str


class TakenDiffers(Fault, code="E3129"):
    """The text of a stage states other operands or results than the ops that it stands for have."""

    message = "{op} {what} {stated}, but the ops that it takes: {expected}"
    hint = "take the stages out of the text, and make them again with 'dnnc opt --passes lower'"
    op: str
    what: str
    stated: str
    expected: str


class NoSize(Fault, code="E3130"):
    """A collective moves a tensor whose number of bytes is not known."""

    message = "{value} has no size"
    value: str


class StrategiesWithoutPlan(Fault, code="E3131"):
    """Ops are split over a mesh, and the module has no plan that says over which."""

    message = "{entry} has ops with strategies, but the module has no plan that names their mesh"
    hint = "run 'partition' (or replay a plan) before 'lower'"
    entry: str


class StageNotPlanned(Fault, code="E3132"):
    """Ops are in a stage that the plan does not list."""

    message = "{plan} has no stage {stage}, which ops are in"
    plan: str
    stage: int


class StageOnNoMesh(Fault, code="E3133"):
    """The plan puts a stage on a mesh that the module does not define."""

    message = "stage {stage} is on {mesh}, which is not a mesh of the module"
    stage: int
    mesh: str


class NoMeshShape(Fault, code="E3134"):
    """The shape of a mesh is a number, or numbers joined by x."""

    message = "mesh is '{text}', expected sizes of axes such as 8 or 2x4"
    text: str


class TooManyAxes(Fault, code="E3135"):
    """A mesh has at most as many axes as the search handles."""

    message = "mesh {text} has {axes} axes, expected at most {most}"
    text: str
    axes: int
    most: int


class EmptyAxis(Fault, code="E3136"):
    """An axis of one member splits nothing; leave it out."""

    message = "mesh {text} has an axis of {size}, expected at least 2 members"
    text: str
    size: int


class MeshTooLarge(Fault, code="E3137"):
    """The mesh has more places than the topology has devices."""

    message = "mesh {text} has {places} places, the topology {devices} device{plural}"
    hint = "use a smaller mesh or more devices"
    text: str
    places: int
    devices: int

    @property
    def plural(self) -> str:
        return "" if self.devices == 1 else "s"


class NoDeviceOfMesh(Fault, code="E3138"):
    """A mesh names a device that the topology does not have."""

    message = "'{device}' is not a device of the topology {topology}"
    device: str
    topology: str


class NoPlacement(Fault, code="E3139"):
    """A layout is a list of placements, one per mesh axis."""

    message = "'{text}' is no placement; S(dim), R or P(sum) expected"
    text: str


class NoSyncMethod(Fault, code="E3140"):
    """The method by which members sum a gradient is none that dnnc has."""

    message = "'{text}' is no method of synchronisation; {methods} expected"
    text: str
    methods: tuple[str, ...]


class NoShares(Fault, code="E3141"):
    """Shares say how much of a dimension each member of an axis has."""

    message = "shares is '{text}', expected '{equal}' or shares such as 3,1 or 3,1x1,1"
    hint = "a number from 1 to {most} for each member along an axis"
    text: str
    equal: str
    most: int


class SharesOfOtherMesh(Fault, code="E3142"):
    """There is not one share for each member of each axis."""

    message = "shares {text} are for a mesh of {stated}, and the mesh is {mesh}"
    text: str
    stated: str
    mesh: str


class NoProgram(Fault, code="E3143"):
    """A device of a stage has no program."""

    message = "{stage} has no program for each of its devices"
    hint = "run 'localize'"
    stage: str


class UnknownDevice(Fault, code="E3144"):
    """A plan or an option names a device that the topology does not have."""

    message = "no device is called '{device}'"
    hint = "{near}"
    device: str
    near: str


class DeviceTaken(Fault, code="E3145"):
    """Two stages share a device but not all of their devices."""

    message = "device '{device}' already runs stage {stage}"
    hint = "stages share all their devices or none"
    device: str
    stage: int


class NoDeviceOfType(Fault, code="E3146"):
    """The plan gives a stage a type of device that the topology does not have."""

    message = "there is no device of type '{type}'"
    hint = "the plan is of another topology"
    type: str


class CannotRunOp(Fault, code="E3147"):
    """No device that a stage may have runs all of its ops."""

    message = "it holds an op that {devices} cannot run"
    hint = "an op without a time for a type cannot run there"
    devices: str


class OverMemory(Fault, code="E3148"):
    """A stage needs more bytes than the device with the most memory has."""

    message = (
        "it needs {needed} bytes on {device}, which has {limit}: {over} bytes too many "
        "({weights} of weights, {workspace} of workspace, {buffers} of buffers{shared})"
    )
    hint = "move ops to another stage, use more stages, or a device with more memory"
    needed: int
    device: str
    limit: int
    weights: int
    workspace: int
    buffers: int
    others: int

    @property
    def over(self) -> int:
        return self.needed - self.limit

    @property
    def shared(self) -> str:
        return f", {self.others} of other stages there" if self.others else ""


class StagesPerDevice(Fault, code="E3149"):
    """An interleaved order needs the same number of stages, more than one, on each device."""

    message = "needs {wanted} on each device, as many on all; the plan has {stages} on {devices}"
    hint = "leave stages and devices to the compiler, or choose another --schedule"
    wanted: str
    stages: int
    devices: int


class StagePlace(Fault, code="E3150"):
    """An interleaved order has its stages on devices in a fixed pattern."""

    message = "needs stage {stage} on {wanted}; the plan has it on {devices}"
    hint = "leave stages and devices to the compiler, or choose another --schedule"
    stage: int
    wanted: tuple[str, ...]
    devices: tuple[str, ...]


class NoReplicas(Fault, code="E3151"):
    """The order that was asked for has no form for stages with replicas."""

    message = "needs stages without replicas; stage {stage} has {devices}"
    hint = "leave stages and devices to the compiler, or choose another --schedule"
    stage: int
    devices: int


class TwoVersions(Fault, code="E3152"):
    """Schedule 2bw keeps two versions of each weight, so no more microbatches may be in flight than a step has."""

    message = "stage 0 has {flight} microbatches in flight, and a step {microbatches}: two versions do not suffice"
    hint = "--microbatches {flight} or more, or --schedule pipedream"
    flight: int
    microbatches: int


class OneDeviceEach(Fault, code="E3153"):
    """An order without a flush needs each stage on one device of its own."""

    message = "needs stages of one device each, and one stage on each device"
    hint = "--mesh none --replicas 1, or another --schedule"


class SharedWeight(Fault, code="E3154"):
    """An order without a flush updates each stage by itself, and a weight is in several stages."""

    message = "needs stages that each update weights of their own; the plan has a weight in several"
    hint = "fewer --stages, another --schedule, or a model without it: exporters let equal weights share one, from_torch not"


class DecisionFault(Fault, code="E3155"):
    """A strategy or layout that the text states for an op does not fit the op, its operands or its mesh."""

    message = "{reason}"
    hint = "{advice}"
    reason: str
    advice: str


class NotSplit(Fault, code="W3156"):
    """Nothing is known about how these operators can be split; each device computes them whole."""

    message = "no layout rule for {ops}: replicated"
    ops: tuple[str, ...]


class UnknownOp(Fault, code="E3157"):
    """A plan or an option names an op that the model does not have."""

    message = "no op is called '{op}'"
    hint = "{near}"
    op: str
    near: str


class AmbiguousOp(Fault, code="E3158"):
    """Several nodes of the model have the name that a plan or an option gives."""

    message = "{count} nodes are called '{op}'"
    hint = "{near}"
    op: str
    near: str
    count: int


class NotADecoder(Fault, code="E3159"):
    """Tokens are planned of a model whose caches stay from step to step, and which is given ids and positions of tokens."""

    message = "objective={objective} is of a decoder whose caches stay on devices, and {name} has none"
    hint = "compile with --context N; 'dnnc inspect' lists the caches that were recognised, --state IN=OUT names others"
    objective: str
    name: str
