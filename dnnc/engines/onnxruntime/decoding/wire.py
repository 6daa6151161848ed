"""The words of a step of decoding: one table of integers from the starter to each stage, and one token a sequence back.

A *step* is a microbatch of one group, of either program. Its table ``CONTROL`` (int64 ``[1 + batch, WORDS]``) says in row 0
the program (``KIND``) and the ``GROUP``, and in row 1 + n of sequence n of the group: the ``POSITION`` of its first token;
the ``ROW`` of the chunk whose logits give its next token, -1 for none; ``RESET``, whether another sequence had its place
before; and how that token is drawn (``sampling``): ``SEED``, ``COUNT``, ``TOP_K``, and the bits of the floats ``TEMPERATURE``
and ``TOP_P``. The stage that reads token ids gets them too, those of the n tokens of each sequence one after the other.

Imports no third party, because the process of a device must start fast.
"""

from __future__ import annotations

import struct

CONTROL, TOKENS, LOGITS = "dnnc.control", "dnnc.tokens", "dnnc.logits"
"""Names of the table that each stage gets, of the tokens (int64 ``[batch]``, -1 for none) that the last one sends, and of the
logits that each was drawn from (float32 ``[batch, vocabulary]``), which it sends where a check asks for them."""
GIVEN = "dnnc.given"
"""The name, with the number of a stage behind a dot, of what new sequences are given there: bytes (``given.given_bytes``) of
those that have ``RESET``, in their order."""
WORDS = 8
KIND, GROUP = 0, 1
POSITION, ROW, RESET, SEED, COUNT, TOP_K, TEMPERATURE, TOP_P = range(WORDS)
STEP, PROMPT = 0, 1
IDLE = (0, -1, 0, 0, 0, 0, 0, 0)
"""The row of a sequence that takes no part in a step."""


def float_bits(value: float) -> int:
    """A float as an integer of the same bits."""
    (bits,) = struct.unpack("<q", struct.pack("<d", value))
    return int(bits)
