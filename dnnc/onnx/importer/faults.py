"""What is refused in an ONNX file, and what is warned of. Codes E16.., W16.."""

from __future__ import annotations

from ir.core.diagnostics import Fault

MODEL_FILES = "give an ONNX file (.onnx), ONNX text (.onnxtxt), IR text (.ir) or zoo:NAME"


def _suggested(closest: str, otherwise: str) -> str:
    return f"did you mean '{closest}'?" if closest else otherwise


class EmptyFile(Fault, code="E1601"):
    """The model file has no bytes."""

    message = "the file is empty; a model was expected"
    hint = "export or download it again"


class NotAModelBut(Fault, code="E1602"):
    """The file begins as files of another kind do."""

    message = "not an ONNX model but {kind}"
    hint = MODEL_FILES
    kind: str


class NotAModelButText(Fault, code="E1603"):
    """A file without a suffix of text holds text."""

    message = "not an ONNX model but text"
    hint = MODEL_FILES + "; rename it if it is one of these texts"


class NotAModel(Fault, code="E1604"):
    """The bytes of the file are not those of an ONNX model."""

    message = "not an ONNX model: at byte {offset}, {reason}"
    hint = MODEL_FILES
    offset: int
    reason: str


class TruncatedModel(Fault, code="E1605"):
    """The file ends in the middle of a field of the model."""

    message = "the file ends too early: at byte {offset}, {reason}"
    hint = "it is truncated (copy or download it again), or no ONNX model at all"
    offset: int
    reason: str


class ModelNotDecoded(Fault, code="E1606"):
    """protobuf does not decode the model: a field has a value that it cannot have, or messages are nested too deep."""

    message = "not a valid ONNX model: a field of it cannot be decoded, or is nested too deep"
    hint = MODEL_FILES


class GraphTooLarge(Fault, code="E1607"):
    """The graph of the model has more bytes than the limit, weights aside."""

    message = "the graph has {size} bytes without its large tensors; at most {most} are supported"
    size: int
    most: int


class TextNestedTooDeep(Fault, code="E1608"):
    """Brackets of ONNX text are nested deeper than its parser can follow."""

    message = "not valid ONNX text: brackets are nested {depth} deep; at most {most} levels are supported"
    depth: int
    most: int


class InvalidText(Fault, code="E1609"):
    """onnx's parser does not take the text."""

    message = "not valid ONNX text: {reason}"
    reason: str


class TextNotUtf8(Fault, code="E1610"):
    """A name or another text in the model is not UTF-8."""

    message = "found the bytes {bytes}, expected UTF-8 text"
    hint = "export the model again"
    bytes: str


class NoSuchIrVersion(Fault, code="E1611"):
    """The model states a version of ONNX's IR that is no 32-bit number from 0 on."""

    message = "IR version {version} does not exist"
    hint = "export the model again"
    version: int


class NoSuchOpset(Fault, code="E1612"):
    """The model, or a function in it, imports an opset whose number cannot be one."""

    message = "opset {version} of domain '{domain}' does not exist"
    hint = "export the model again"
    version: int
    domain: str


class TrainingInfoIgnored(Fault, code="W1613"):
    """The model holds ONNX's training information (``training_info``), which dnnc does not use."""

    message = "training information is ignored: it is not part of inference"


class FunctionsOfTooManyNodes(Fault, code="E1614"):
    """The graph would have far more nodes than the file, once each call of a model function is replaced by its body."""

    message = "the calls of model functions expand to {nodes} nodes; at most {most} are supported"
    hint = "is a function called in a circle or far more often than meant? --limit inlined-nodes=NUMBER allows more"
    nodes: int
    most: int


class FunctionsOfTooManyBytes(Fault, code="E1615"):
    """The graph would have far more bytes than the file, once each call of a model function is replaced by its body."""

    message = "the calls of model functions expand to more than {most} bytes"
    hint = "are its names or constants longer than meant?"
    most: int


class FunctionsNestedTooDeep(Fault, code="E1616"):
    """A model function calls another, which calls another, and so on, past the limit."""

    message = "model functions call each other more than {most} deep; at most that many levels are supported"
    most: int


class GraphsNestedTooDeep(Fault, code="E1617"):
    """A branch or loop body holds another, which holds another, and so on, past the limit."""

    message = "graphs are nested {depth} deep; at most {most} levels are supported"
    depth: int
    most: int


class FunctionsInCircle(Fault, code="E1618"):
    """A model function calls itself, directly or through others."""

    message = "model functions call each other in a circle: {circle}"
    circle: str


class OperatorOfTwoMeanings(Fault, code="E1619"):
    """A model function imports another opset than the model, and an operator in it changed its meaning between the two."""

    message = "{operator} means something else in opset {opset} of the model than in {own} of the function"
    hint = "onnxruntime reads it as one of the model's: export the model with one opset"
    operator: str
    opset: int
    own: int


class FunctionNotConverted(Fault, code="E1620"):
    """A model function imports another opset than the model, and onnx's version converter does not convert it."""

    message = "a model function uses another opset than the model and cannot be converted: {reason}"
    hint = "export the model with one opset"
    reason: str


class OpsetImportedTwice(Fault, code="E1621"):
    """The model imports two versions of one domain."""

    message = "opset '{domain}' is imported in versions {first} and {second}; one was expected"
    domain: str
    first: int
    second: int


class OpsetTooNew(Fault, code="E1622"):
    """The model's opset came with a newer onnx than the installed one."""

    message = "opset {version} is newer than the installed onnx knows (up to {newest})"
    hint = "pip install -U onnx"
    version: int
    newest: int


class OpsetNotPositive(Fault, code="E1623"):
    """Opsets count from 1."""

    message = "opset {version} does not exist; {oldest} or newer was expected"
    version: int
    oldest: int


class OpsetTooOld(Fault, code="E1624"):
    """The model's opset is older than dnnc reads, and has operators that changed since."""

    message = "opset {version} is older than the oldest supported, {oldest}, and {operators} changed since"
    hint = "onnx.version_converter.convert_version(model, {oldest}) or export again"
    version: int
    oldest: int
    operators: tuple[str, ...]


class NoOpset(Fault, code="E1625"):
    """The model does not say of which opset its operators are."""

    message = "the model imports no opset; at least one was expected"
    hint = "export it again with an opset version"


class InputWithoutElementType(Fault, code="E1626"):
    """An input of the model is a tensor whose element type is not stated."""

    message = "graph input '{name}' states no element type"
    hint = "export the model again"
    name: str


class InputOfUnknownElementType(Fault, code="E1627"):
    """An input of the model has an element type that ONNX does not define."""

    message = "graph input '{name}' has element type {number}, which is not one of ONNX"
    hint = "export the model again"
    name: str
    number: int


class NoOutputs(Fault, code="E1628"):
    """The model computes nothing that it hands out."""

    message = "the model has no outputs; at least one was expected"
    hint = "name as output what is to be computed"


class OutputListedTwice(Fault, code="W1629"):
    """A graph lists one value twice among its outputs."""

    message = "output '{name}' is listed twice; it is kept once"
    name: str


class DefinedTwice(Fault, code="E1630"):
    """Two nodes, inputs or initializers of a graph make values of one name."""

    message = "'{name}' is defined twice: by {first} and by {second}"
    hint = "every value must be made once; rename one of them"
    name: str
    first: str
    second: str


class DefinedAround(Fault, code="E1631"):
    """A branch or loop body defines a name that the graph around it defines too, which ONNX forbids."""

    message = "'{name}' is defined by {inside}, and around it by {around}"
    hint = "rename one of them: ONNX wants a name that is not yet known around the graph"
    name: str
    inside: str
    around: str


class WithoutName(Fault, code="E1632"):
    """An input or initializer of a graph has no name, so that no node can read it."""

    message = "{what} has no name"
    what: str


class UnknownValue(Fault, code="E1633"):
    """A node reads a value that nothing in its graph, nor in those around it, makes."""

    message = "input '{name}' is made by no node, input or initializer"
    hint = "{advice}"
    name: str
    closest: str

    @property
    def advice(self) -> str:
        return _suggested(self.closest, "the graph is cut off or the name is misspelt")


class UnknownOutput(Fault, code="E1634"):
    """A graph hands out a value that nothing in it, nor in the graphs around it, makes."""

    message = "graph output '{name}' is made by no node, input or initializer"
    hint = "{advice}"
    name: str
    closest: str

    @property
    def advice(self) -> str:
        return _suggested(self.closest, "")


class GraphWithCycle(Fault, code="E1635"):
    """A node needs its own result, directly or through other nodes."""

    message = "the graph has a cycle: {nodes}"
    hint = "a model graph must be acyclic; use Loop or Scan"
    nodes: str


class NodeWithoutOperator(Fault, code="E1636"):
    """A node does not say what it computes."""

    message = "a node names no operator"


class DomainNotImported(Fault, code="E1637"):
    """A node is of a domain for which the model imports no opset."""

    message = "operator {operator} is of domain '{domain}', which the model does not import"
    hint = "add {domain} to the model's opset_import"
    operator: str
    domain: str


class OperatorTooNew(Fault, code="E1638"):
    """An operator came with a later opset than the model's."""

    message = "{domain} has no operator {operator} in opset {version}; it came with opset {since}"
    hint = "export with opset {since} or newer"
    domain: str
    operator: str
    version: int
    since: int


class UnknownOperator(Fault, code="E1639"):
    """A standard domain has no operator of this name."""

    message = "{domain} has no operator {operator}"
    hint = "{suggestion}an operator of your own needs a domain of its own (node.domain)"
    domain: str
    operator: str
    closest: str

    @property
    def suggestion(self) -> str:
        return f"did you mean {self.closest}? " if self.closest else ""


class WrongArity(Fault, code="E1640"):
    """A node has more or fewer inputs or outputs than its operator."""

    message = "{operator} has {count} {kind}, {expected} were expected"
    operator: str
    count: int
    kind: str
    expected: str


class SurplusOperands(Fault, code="W1641"):
    """A node of ONNX Runtime's own domain has more operands than dnnc knows of; a newer release may have added them."""

    message = "{operator} has {count} {kind}, {expected} were expected"
    operator: str
    count: int
    kind: str
    expected: str


class AttributeTwice(Fault, code="E1642"):
    """A node states one attribute twice."""

    message = "{operator} has the attribute '{name}' twice; once was expected"
    operator: str
    name: str


class AttributeMissing(Fault, code="E1643"):
    """A node lacks an attribute that its operator needs."""

    message = "{operator} needs the attribute '{name}'"
    operator: str
    name: str


class UnknownAttribute(Fault, code="E1644"):
    """A node states an attribute that its operator does not have."""

    message = "{operator} has no attribute '{name}' in opset {version}"
    hint = "{advice}"
    operator: str
    name: str
    version: int
    closest: str
    names: tuple[str, ...]

    @property
    def advice(self) -> str:
        return _suggested(self.closest, f"it has: {', '.join(self.names) or 'none'}")


class SurplusAttribute(Fault, code="W1645"):
    """A node of ONNX Runtime's own domain states an attribute that dnnc does not know; a newer release may have added it."""

    message = "{operator} has no attribute '{name}' in opset {version}"
    hint = "{advice}"
    operator: str
    name: str
    version: int
    closest: str
    names: tuple[str, ...]

    @property
    def advice(self) -> str:
        return _suggested(self.closest, f"it has: {', '.join(self.names) or 'none'}")


class AttributeRefused(Fault, code="E1646"):
    """An attribute has a value with which no run of the operator succeeds."""

    message = "{reason}"
    reason: str


class AttributeInvalid(Fault, code="E1647"):
    """The value of an attribute does not fit its own type."""

    message = "attribute '{name}': {reason}"
    name: str
    reason: str


class TrainingMetadataInvalid(Fault, code="E1648"):
    """The metadata ``dnnc.training`` of a node, which ``from_torch`` writes, cannot be read."""

    message = "metadata '{key}': {reason}"
    key: str
    reason: str


class NodeCannotRun(Fault, code="E1649"):
    """onnx's shape inference fails at a node, and onnxruntime refuses the node for the same reason; or a Reshape would change
    the number of elements."""

    message = "{operator} cannot run: {reason}"
    hint = "onnxruntime refuses this node too, so no plan of the model could run"
    operator: str
    reason: str


class InitializerInvalid(Fault, code="E1650"):
    """The data of an initializer does not fit its type, or says wrongly where it lies."""

    message = "initializer '{name}': {reason}"
    name: str
    reason: str


class SparseInitializerInvalid(Fault, code="E1651"):
    """A sparse initializer stands for no dense tensor that fits into memory."""

    message = "sparse initializer '{name}': {reason}"
    name: str
    reason: str


class DefaultsBecomeConstants(Fault, code="W1652"):
    """An input has a default in the model. dnnc uses the default, and a run takes no such input."""

    message = "inputs with a default become constants: {names}"
    names: str


class CustomOperator(Fault, code="W1653"):
    """An operator is of a domain of its own. Shape inference does not know it, and its cost is a guess."""

    message = "operator {operator} ({nodes}) is not of a standard domain: kept as it is, its costs and types are guesses"
    operator: str
    count: int

    @property
    def nodes(self) -> str:
        return f"{self.count} nodes" if self.count > 1 else "1 node"


class OperatorWithoutRule(Fault, code="W1654"):
    """ONNX Runtime has an operator whose result types dnnc does not derive."""

    message = "operator {operator} ({nodes}) has no rule here: kept as it is, its costs and types are guesses"
    operator: str
    count: int

    @property
    def nodes(self) -> str:
        return f"{self.count} nodes" if self.count > 1 else "1 node"


class MoreFaults(Fault, code="E1655"):
    """The model has more faults than are shown."""

    message = "{count} more faults are not shown"
    count: int
