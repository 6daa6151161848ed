"""The sockets on which the processes of a command listen, as Linux lists them."""

from __future__ import annotations

import ipaddress
import os
import struct
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from tests.dnnc.engines.onnxruntime.processes import children

LISTENS = "0A"


def listeners(process: int) -> set[str]:
    """The addresses on which a process, or one below it, listens (TCP) or takes what comes (UDP)."""
    every, found = [process], set[str]()
    for one in every:
        every += children(one)
    sockets = {link for one in every for link in _links(one)}
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if f"socket:[{inode}]" in sockets and (state == LISTENS or protocol.startswith("udp")):
                digits = bytes.fromhex(local.partition(":")[0])
                words = struct.unpack(f"<{len(digits) // 4}I", digits)
                found.add(str(ipaddress.ip_address(struct.pack(f">{len(words)}I", *words))))
    return found


def _links(process: int) -> list[str]:
    links = []
    with suppress(OSError):
        for name in os.listdir(f"/proc/{process}/fd"):
            with suppress(OSError):
                links.append(os.readlink(f"/proc/{process}/fd/{name}"))
    return links


def listened(commands: Sequence[Sequence[str]]) -> tuple[list[int], set[str]]:
    """Run commands at the same time, to their ends: their exit codes, and every address on which they were seen to listen."""
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    found = set[str]()
    while any(process.poll() is None for process in running):
        for process in running:
            found |= listeners(process.pid)
        time.sleep(0.05)
    return [process.wait() for process in running], found


__all__ = ["listened", "listeners"]
