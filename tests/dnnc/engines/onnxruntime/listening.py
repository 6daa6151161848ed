"""The addresses on which the processes of a command listen, from Linux's ``/proc``."""

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
    """The addresses on which a process or its descendants listen (TCP), or have a socket (UDP)."""
    processes, addresses = [process], set[str]()
    for one in processes:
        processes += children(one)
    sockets = {link for one in processes for link in _links(one)}
    for protocol in ("tcp", "tcp6", "udp", "udp6"):
        for line in Path(f"/proc/net/{protocol}").read_text().splitlines()[1:]:
            _, local, _, state, *_, inode = line.split()[:10]
            if f"socket:[{inode}]" in sockets and (state == LISTENS or protocol.startswith("udp")):
                digits = bytes.fromhex(local.partition(":")[0])
                words = struct.unpack(f"<{len(digits) // 4}I", digits)
                addresses.add(str(ipaddress.ip_address(struct.pack(f">{len(words)}I", *words))))
    return addresses


def _links(process: int) -> list[str]:
    """The files, sockets and pipes behind the descriptors of a process."""
    links = []
    with suppress(OSError):
        for name in os.listdir(f"/proc/{process}/fd"):
            with suppress(OSError):
                links.append(os.readlink(f"/proc/{process}/fd/{name}"))
    return links


def listened(commands: Sequence[Sequence[str]]) -> tuple[list[int], set[str]]:
    """Runs commands at the same time, to their ends. Returns their exit codes, and all addresses on which they listened."""
    running = [subprocess.Popen(command, stdout=subprocess.DEVNULL) for command in commands]
    addresses = set[str]()
    while any(process.poll() is None for process in running):
        for process in running:
            addresses |= listeners(process.pid)
        time.sleep(0.05)
    return [process.wait() for process in running], addresses
