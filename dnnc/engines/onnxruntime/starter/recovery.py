"""Goes on after a loss: a process was killed, its host went down, or a connection broke.

Whatever is lost, everything ends and starts again, and what was not answered is asked again:

1. An *epoch* is a set of processes with the relays between them. On a loss the starter ends its epoch: relays, agents and
   processes of all hosts, with everything that is under way in them. Slots, tokens, orders and collectives end with these.
2. It waits until the node of each host is there: the same node, or another one that has come up for the same host.
3. It starts a new epoch, as at the beginning of a run. The files of the stages are in the caches of the hosts.
4. It feeds the microbatches that were not answered, in order, from their inputs, which it keeps until then. What has been
   answered is not asked again, so no output is lost or comes twice. Microbatches under way are those that are in flight, so
   that is all that is kept.

No message of an old epoch is taken for one of the new: each relay makes keys of its own, and lets in those of its epoch alone
(``dnnc.engines.cluster.network``), and processes of one host share memory that was made for them. A host that was cut off and
still sends is refused in the handshake; its agent and processes end once they notice that their starter has gone. So nothing
has to be numbered by epochs, and what a dead process held need not be known. The price: processes that lived load their weights
again.

A loss (``Lost``) is what another try can mend: a host that has gone, a process that was killed from outside, a connection that
broke. What would come again is none: an error that a program raises, a crash, a stage that is too slow.

Time: from a loss until the next microbatch is answered, ``seconds`` may pass; then the next loss, or the next try that fails,
ends the run. So a host that stays away ends it, and a process that is killed each time, for lack of memory, too.

On this host alone a run ends with its first loss: its inputs can be fed again by who started it. Decoding goes on, because an
answer under way is lost else; nobody has to come back for that, so a few losses within ``seconds`` (``most``) end it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from dnnc.engines.onnxruntime.errors import Lost, StageStopped
from dnnc.engines.onnxruntime.faults import RunGoesOn, StageStartedAgain
from ir.core.diagnostics import Diagnostic, DnncError, InvalidInput

_LOG = logging.getLogger(__name__)
_PAUSE = 0.5
"""Seconds between two tries."""

Stopped = Callable[[], bool]
"""Whether nobody wants the run to go on."""


def _log(diagnostic: Diagnostic) -> None:
    _LOG.info("%s", diagnostic)


@dataclass(slots=True)
class Recovery:
    """``seconds``: those that may pass from a loss until the next microbatch is answered, 0 for runs that end with a loss;
    ``most``: losses within ``seconds`` after which a run on this host still goes on, 0 for a run on several hosts, which waits
    for them instead; ``tell``: gets a warning for each loss."""

    seconds: float
    most: int = 0
    tell: Callable[[Diagnostic], None] = _log
    since: float | None = None
    losses: list[float] = field(default_factory=list)

    @property
    def far(self) -> bool:
        """Whether the run waits for lost hosts."""
        return self.seconds > 0 and not self.most

    def answered(self) -> None:
        """Notes that all outputs of a microbatch are there."""
        self.since = None

    def go_on(self, lost: Lost, again: Callable[[float], None], stopped: Stopped) -> None:
        """Calls ``again``, with the time (of the monotonic clock) until when hosts may come back, until it starts a new epoch.
        Raises ``lost`` where runs end with it, and StageStopped that tells both where no epoch starts in time."""
        now = time.monotonic()
        self.since = now if self.since is None else self.since
        until = self.since + self.seconds
        if now >= until or self._too_many(now):
            raise lost
        what, where = lost.diagnostics[0].message, lost.diagnostics[0].where
        self.tell((StageStartedAgain(what) if self.most else RunGoesOn(what, self.seconds)).at(where))
        while True:
            try:
                again(until)
                return
            except DnncError as error:
                if stopped():
                    raise lost from None
                again_lost = isinstance(error, Lost) and not self._too_many(time.monotonic())
                mendable = again_lost if self.most else isinstance(error, StageStopped | InvalidInput)
                if not mendable or time.monotonic() + _PAUSE >= until:
                    raise StageStopped([*lost.diagnostics, *error.diagnostics]) from None
            time.sleep(_PAUSE)

    def _too_many(self, now: float) -> bool:
        """Counts a loss. Whether a run on this host has had more than ``most`` within ``seconds``."""
        self.losses = [*(time for time in self.losses if time > now - self.seconds), now]
        return 0 < self.most < len(self.losses)
