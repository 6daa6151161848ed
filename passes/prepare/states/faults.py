"""Faults of the pass ``states``. Codes 41.."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class StateNotNamed(Fault, code="E4101"):
    """--state has another form than IN=OUT."""

    message = "'{text}' names no state: expected IN=OUT, an input of the model and the output that it becomes"
    text: str


class NoPair(Fault, code="E4102"):
    """--state names an input or an output that the model does not have."""

    message = "the model has no such input and output: '{text}'"
    hint = "its inputs are {inputs}; its outputs {outputs}"
    text: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


class StateTaken(Fault, code="E4103"):
    """--state names an input or an output twice."""

    message = "'{text}' names an input or an output that another state has"
    text: str


class WrongPair(Fault, code="E4104"):
    """The input and the output of a state differ in more than one dimension, or in their element types."""

    message = "{source} and {result} are no state: {source} is {before} and {result} is {after}"
    hint = "a state keeps its element type, and its shape but for the axis along which a cache grows"
    source: str
    before: str
    result: str
    after: str


class NoStates(Fault, code="E4105"):
    """Decoding is asked for, and the model has no caches that dnnc recognises."""

    message = "no input of the model is a cache that an output continues: its inputs are {inputs}"
    hint = "name each cache by --state IN=OUT, or export the model with caches ('optimum-cli export onnx' writes them)"
    inputs: tuple[str, ...]


class CacheNotInPlace(Fault, code="E4106"):
    """A cache cannot be kept in place, because the model does not say how it would be right."""

    message = "the cache {name} cannot be kept in place: {reason}"
    hint = "export it with caches of full length, by onnxruntime-genai's model builder for instance, or leave --context out"
    name: str
    reason: str


class MaskTooLarge(Fault, code="E4117"):
    """What a decoder adds to its scores comes from a constant that is too large to be looked at: it may depend on the length of
    the past."""

    message = "the cache {name} cannot be kept in place: its mask reads {op} ({kind}), which is too large to be judged"
    hint = "a shorter --context, or a smaller --chunk of prompts, may do; a table of biases may be written out more tightly"
    name: str
    op: str
    kind: str


class NotOneInput(Fault, code="E4107"):
    """An input of a decoder is none that a step can make by itself."""

    message = "the input {name} is neither token ids, nor a cache, a mask of 1 for tokens, positions, or what an encoder gives"
    hint = "its type is {type}; name a state by --state IN=OUT, an input of another name by --role NAME=ROLE"
    name: str
    type: str


class OneForAll(Fault, code="E4118"):
    """An input of a decoder has one row, for all sequences of a batch: they are at unlike positions."""

    message = "the input {name} ({role}) is {type}: it has one row for all of {batch} sequences, which are at unlike positions"
    hint = "compile with --batch 1, or export the model with its first dimension open"
    name: str
    type: str
    role: str
    batch: int


class NoTokenIds(Fault, code="E4110"):
    """No input of a decoder has the type of token ids."""

    message = "no input of the model is token ids, integers [batch, length]: its inputs are {inputs}"
    hint = "name it by --role NAME=ids; a model of embeddings in their place cannot generate"
    inputs: tuple[str, ...]


class RoleNotStated(Fault, code="E4111"):
    """--role has another form than NAME=ROLE."""

    message = "'{text}' states no role: expected NAME=ROLE, where ROLE is one of {roles}"
    text: str
    roles: tuple[str, ...]


class RoleStatedTwice(Fault, code="E4116"):
    """--role states two roles of one input, or two inputs of token ids."""

    message = "'{text}' and '{other}' exclude each other: an input has one role, and one input has the token ids"
    text: str
    other: str


class RoleOfNoInput(Fault, code="E4112"):
    """--role names no input of the model, a state, or an input whose type its role does not have."""

    message = "no input of the model can have this role: {text}"
    hint = "a role has the type that 'dnnc compile --help' says; the inputs that are no states are {inputs}"
    text: str
    inputs: tuple[str, ...]


class OldOpset(Fault, code="E4108"):
    """An op of the model changed between its opset and the first with TensorScatter, which keeps a cache in place."""

    message = "{op} of opset {opset} cannot be read as one of opset 24, which a cache in place needs"
    hint = "export the model with opset 18 or newer"
    op: str
    opset: int


class BatchNotTold(Fault, code="E4109"):
    """A recurrent state of a decoder has none or several dimensions as large as the batch: which part is a sequence's is not
    known, and a new sequence begins with zeros in its part."""

    message = "the state {name} is {shape}, expected exactly one dimension of the batch, {batch}"
    hint = "compile with another --batch, or with --batch 1"
    name: str
    shape: str
    batch: int


class TooFewPositions(Fault, code="E4113"):
    """A table of positions, or of their angles, has fewer rows than the caches are to have positions."""

    message = "the model knows {rows} positions, by {table}, fewer than the {context} of its caches"
    hint = "compile with --context {rows}, or less"
    table: str
    rows: int
    context: int


class NoCaches(Fault, code="E4115"):
    """Tokens are asked for from a model all of whose states are new in each step, such as Mamba or an LSTM."""

    message = "the model has no cache that grows by a token in each step: its states, {states}, are recurrent"
    hint = (
        "dnnc generates tokens by caches alone; without --context, --state IN=OUT keeps such states, and 'dnnc run' takes one "
        "token of each sequence after another"
    )
    states: str


class TwoBranches(Fault, code="E4114"):
    """An export holds two models, with caches and without, and an input that chooses between them, not by an If."""

    message = "the input {name} chooses between two models in this file, with caches and without; one with caches is needed"
    hint = (
        "give the file of the branch with caches: 'optimum-cli export onnx --no-post-process' leaves it as "
        "decoder_with_past_model.onnx"
    )
    name: str
