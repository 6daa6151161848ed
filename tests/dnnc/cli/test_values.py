"""Plain values of options come to a command as typer itself would hand them over, and what is refused is told in its words."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from dnnc.cli.app import needed
from dnnc.cli.entry import CLICK_EXCEPTION
from dnnc.cli.options.values import quicken
from ir.core.diagnostics import UsageError

SOLVE = [
    "",
    "--split any --comm max",
    "--split Any",
    "--objective training --schedule gpipe --microbatches 8",
    "--objective nothing",
    "--accelerators 3 --cpus 0 --time-limit 1.5 --memory 16GiB",
    "--accelerators 3.5",
    "--accelerators -1",
    "--accelerators 65537",
    "--time-limit -1",
    "--time-limit soon",
    "--straight --forward --json --compare",
    "--expert hand.json -o out.json",
    "--format ",
]
COMPILE = ["--dim batch=4 --dim length=8", "--plan-only -o build", "--objective late", "--cut a,b --cut c", "--weights no"]


@pytest.mark.parametrize(
    "arguments",
    [*(f"solve {{file}} {text}" for text in SOLVE), *(f"compile {{file}} -t preset:cpu-2 {text}" for text in COMPILE)],
)
def test_values_are_those_of_typer(arguments: str, tmp_path: Path) -> None:
    file = tmp_path / "workload.json"
    file.write_text("{}")
    words = [word.format(file=file) for word in arguments.split(" ")]
    assert parsed(words, quick=True) == parsed(words, quick=False)


def test_folders_absent_files_and_broken_paths(tmp_path: Path) -> None:
    for path in (str(tmp_path), str(tmp_path / "absent"), "", "a\0b", "-"):
        assert parsed(["solve", path], quick=True) == parsed(["solve", path], quick=False)


def parsed(words: list[str], *, quick: bool) -> Any:
    """The values and their types that the command would get, or the words that refuse the arguments."""
    group: Any = get_command(needed(words))
    if quick:
        quicken(group)
    command = group.commands[words[0]]
    try:
        with command.make_context(words[0], words[1:]) as context:
            return {name: (type(value), value) for name, value in context.params.items()}
    except CLICK_EXCEPTION as error:
        return type(error), error.format_message()
    except UsageError as error:
        return type(error), str(error)


@pytest.mark.slow
def test_a_command_without_doubtful_values_loads_no_pydantic_and_no_onnx(tmp_path: Path) -> None:
    file = tmp_path / "workload.json"
    node = '{{"id": {}, "supportedOnFpga": 1, "cpuLatency": 9, "fpgaLatency": 2, "isBackwardNode": 0, "size": 8}}'
    nodes = ", ".join(node.format(index) for index in range(2))
    edges = '[{"sourceId": 0, "destId": 1, "cost": 1}]'
    file.write_text(f'{{"maxSizePerFPGA": 99, "maxFPGAs": 2, "maxCPUs": 1, "nodes": [{nodes}], "edges": {edges}}}')
    code = (
        "import sys; from dnnc.cli.entry import run; code = run(['solve', sys.argv[1], '--split', 'contiguous']); "
        "print(code, sorted({'pydantic', 'onnx', 'onnxruntime', 'lark', 'rich', 'networkx', 'highspy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(file)], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "0 []", done.stdout + done.stderr
