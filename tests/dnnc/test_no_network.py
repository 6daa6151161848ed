"""No network and no trace: what the commands start opens no socket and leaves no file outside the build and dnnc's own caches.

onnxruntime's telemetry opens its sockets after some ten seconds only, but writes its files at once: they are looked for after
every command.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import subprocess
import sys
from pathlib import Path

import pytest

QUIETING = (
    *("ORT_DISABLE_TELEMETRY", "ORT_RUNNING_UNIT_TESTS", "CI", "TF_BUILD", "GITHUB_ACTIONS", "GITLAB_CI", "CIRCLECI", "TRAVIS"),
    *("JENKINS_URL", "CODEBUILD_BUILD_ID", "BUILDKITE", "TEAMCITY_VERSION", "APPVEYOR", "BITBUCKET_BUILD_NUMBER"),
)
"""Variables that turn onnxruntime's telemetry off; without them it is as on a user's machine."""


def users_environment(home: Path) -> dict[str, str]:
    """The environment of a user whose folders are all below ``home``."""
    environment = {key: value for key, value in os.environ.items() if key not in QUIETING and not key.startswith("XDG_")}
    (home / "tmp").mkdir(parents=True)
    return {**environment, "HOME": str(home), "TMPDIR": str(home / "tmp")}


def files_below(home: Path) -> list[str]:
    """Files and sockets below ``home``, but those in dnnc's own cache and in numba's."""
    found = (path.relative_to(home) for path in home.rglob("*") if not path.is_dir())
    return sorted(str(path) for path in found if path.parts[:2] not in ((".cache", "dnnc"), (".cache", "numba")))


def dnnc(environment: dict[str, str], *arguments: str, **options: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-P", "-m", "dnnc", *arguments]
    return subprocess.run(  # type: ignore[call-overload,no-any-return]
        command, env=environment, capture_output=True, text=True, check=False, timeout=300, **options
    )


@pytest.mark.slow
def test_no_socket_is_opened_and_the_user_s_folders_stay_empty(tmp_path: Path) -> None:
    """The commands and their stage processes; where the system allows it with every call of ``socket`` ending its process."""
    guard = {"preexec_fn": refuse_sockets} if sockets_refused() else {}
    environment, build = users_environment(tmp_path / "home"), str(tmp_path / "build")
    symbolic = tmp_path / "symbolic.onnx"  # its shapes are completed by onnxruntime's symbolic inference
    symbolic.write_bytes(model_of_unknown_shapes())
    commands = (
        ("compile", "zoo:mlp", "-t", "preset:cpu-2", "--stages", "2", "-o", build, "--quiet"),
        ("run", build, "--quiet"),
        ("check", build, "--quiet"),
        ("import", str(symbolic)),
    )
    for arguments in commands:
        done = dnnc(environment, *arguments, **guard)
        assert done.returncode == 0, (arguments, done.returncode, done.stderr)
        assert files_below(tmp_path / "home") == [], arguments[0]


def model_of_unknown_shapes() -> bytes:
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("NonZero", ["x"], ["places"]),
        helper.make_node("Transpose", ["places"], ["y"], perm=[1, 0]),
    ]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 4])
    y = helper.make_tensor_value_info("y", TensorProto.INT64, None)
    graph = helper.make_graph(nodes, "g", [x], [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


@pytest.mark.parametrize(("setting", "written"), [("0", True), ("", False), ("1", False)])
def test_a_user_s_own_setting_counts(setting: str, written: bool, tmp_path: Path) -> None:
    """And the files that the test above looks for do appear with telemetry on."""
    environment = users_environment(tmp_path) | {"ORT_DISABLE_TELEMETRY": setting}
    code = "from dnnc.onnx.ort import load_onnxruntime; load_onnxruntime()"
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)
    assert bool(files_below(tmp_path)) == written


SYSCALLS = {"x86_64": (0xC000003E, 41), "aarch64": (0xC00000B7, 198)}
"""Of a machine: its AUDIT_ARCH of linux/audit.h and the number of ``socket``."""


def refuse_sockets() -> None:
    """From now on a call of ``socket`` ends this process, or any that it starts, by SIGSYS: a seccomp filter."""
    architecture, number = SYSCALLS[platform.machine()]
    load, equal, give = 0x20, 0x15, 0x06  # BPF_LD|BPF_W|BPF_ABS, BPF_JMP|BPF_JEQ|BPF_K, BPF_RET|BPF_K
    allow, kill = 0x7FFF0000, 0x80000000  # SECCOMP_RET_ALLOW, SECCOMP_RET_KILL_PROCESS
    program = ((load, 0, 0, 4), (equal, 0, 3, architecture), (load, 0, 0, 0), (equal, 0, 1, number), (give, 0, 0, kill))
    code = b"".join(struct.pack("HBBI", *line) for line in (*program, (give, 0, 0, allow)))
    buffer = ctypes.create_string_buffer(code)
    libc = ctypes.CDLL(None, use_errno=True)
    header = struct.pack("HxxxxxxQ", len(code) // 8, ctypes.addressof(buffer))
    if libc.prctl(38, 1, 0, 0, 0) or libc.prctl(22, 2, ctypes.c_char_p(header), 0, 0):  # PR_SET_NO_NEW_PRIVS, PR_SET_SECCOMP
        os._exit(77)


def sockets_refused() -> bool:
    """Whether a filter can be set here and does what it says."""
    if sys.platform != "linux" or platform.machine() not in SYSCALLS:
        return False
    code = "import socket; socket.socket(socket.AF_INET, socket.SOCK_DGRAM)"
    return subprocess.run([sys.executable, "-c", code], preexec_fn=refuse_sockets, check=False).returncode == -31  # SIGSYS
