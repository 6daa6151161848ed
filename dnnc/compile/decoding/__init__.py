"""Builds that keep states.

- ``loading``: the model, as a step reads it
- ``steps``: the options of decoders, and the step
- ``prompt``: the prompt program
- ``step_of_batch``: the step for any number of sequences
- ``choice``: batch and groups, where the objective chooses them
- ``told``: what the certificate tells of tokens
- ``genai``: a pipeline for onnxruntime-genai
- ``configs``: what a ``genai_config.json`` beside a model says of it
"""

from dnnc.compile.decoding.prompt import prompt_of, with_chunk
from dnnc.compile.decoding.steps import (
    keeps_states,
    of_plan,
    of_states,
    of_tokens,
    sized,
    unsized,
    with_past_checked,
    with_states,
)

__all__ = [
    "keeps_states",
    "of_plan",
    "of_states",
    "of_tokens",
    "prompt_of",
    "sized",
    "unsized",
    "with_chunk",
    "with_past_checked",
    "with_states",
]
