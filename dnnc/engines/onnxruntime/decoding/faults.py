"""What is refused of a request to generate tokens, and of builds that are asked for them. Codes E19."""

from __future__ import annotations

from ir.core.diagnostics import Fault


class NoDecoding(Fault, code="E1901"):
    """Tokens were asked for from a build without the states of a language model."""

    message = "the build generates no tokens: it has no caches that stay from one token to the next"
    hint = "compile a model with past_key_values as inputs and present as outputs, with --context N"


class PromptTooLong(Fault, code="E1903"):
    """Prompt and answer share the context that the build was compiled for."""

    message = "the prompt has {tokens} tokens; the context of {context} holds {most} and a token of the answer"
    hint = "shorten the prompt, or compile with a larger --context"
    tokens: int
    context: int
    most: int


class PromptEmpty(Fault, code="E1904"):
    """An answer follows from at least one token."""

    message = "the prompt has no tokens"
    hint = "begin with the model's token for the begin of a text"


class TokenOutOfRange(Fault, code="E1905"):
    """A token id is none of the model's vocabulary."""

    message = "token {token} is none of the model's, which are 0 to {last}"
    hint = "is the tokenizer that of the model?"
    token: int
    last: int


class SamplingOutOfRange(Fault, code="E1906"):
    """A number that says how tokens are drawn is outside its range."""

    message = "{name} is {value}; {expected} expected"
    name: str
    value: str
    expected: str


class GeneratesTokens(Fault, code="E1907"):
    """A session of a language model was asked for a microbatch."""

    message = "the session generates tokens: its states are those of its sequences"
    hint = "ask session.generate(ids), or compile the model without --context"


class StateMissing(Fault, code="E1908"):
    """A model that reads what an encoder made was asked for tokens without it."""

    message = "the model reads {name}, which a sequence is given where it begins; none is given"
    hint = "give arrays for {names}: generate(ids, states={{name: array}}), or --states FILE.npz"
    name: str
    names: tuple[str, ...]


class StateUnknown(Fault, code="E1909"):
    """An array is given for what is no state of the model."""

    message = "'{name}' is none of the states that a sequence of this model is given: {known}"
    name: str
    names: tuple[str, ...]

    @property
    def known(self) -> str:
        return ", ".join(self.names) or "there are none"


class WrongState(Fault, code="E1910"):
    """An array that a sequence is given has another type than its state."""

    message = "{name} is {found}; {expected} expected"
    name: str
    found: str
    expected: str


class GivenTooShort(Fault, code="E1911"):
    """An array is shorter than its state, and no mask of the model would hide the rest."""

    message = "{name} is shorter than the build's, and the model has no mask that would hide the rest"
    hint = "give arrays of full length, or compile for this length"
    name: str
