"""The shape of the repository: which package may import which, who may touch a third-party library, what lies where.

Everything is read with ``ast``, lazy imports inside functions included, so a rule holds whether or not the code runs. The
linter and the type checker are run by ``.ci/run``.
"""

from __future__ import annotations

import ast
import functools
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from pathlib import Path

import networkx as nx
import pytest

from ir.core.objectives import OBJECTIVES
from ir.core.outcomes import OUTCOMES
from tests.source_nodes import PACKAGES, ROOT, nodes, sources, tree_of

TOP_LEVEL = {"pyproject.toml", "README.md", "grammars", "ir", "passes", "dnnc", "golden", "tests"}

DOORS = {
    "lark": ("grammars/*", "ir/text/parser.py"),
    "networkx": ("passes/*",),
    "numba": ("passes/*kernels.py",),
    "highspy": ("passes/*",),
    "pymetis": ("passes/reference/baselines/metis.py",),
    "onnx": (
        "dnnc/onnx/*",
        "dnnc/engines/*",
        "dnnc/check/reference.py",
        "dnnc/check/perturb.py",
        "dnnc/check/proof/segments.py",
    ),
    "onnx_ir": ("dnnc/onnx/*", "dnnc/engines/*", "dnnc/check/reference.py"),
    "google": ("dnnc/onnx/*", "dnnc/engines/*", "dnnc/check/*"),  # protobuf, which onnx brings and whose errors it lets through
    "onnxruntime": ("dnnc/onnx/ort.py",),  # where its telemetry is turned off first
    "torch": ("dnnc/engines/torch/*", "dnnc/search_tag/training.py"),
    "onnxscript": ("dnnc/engines/torch/module/*",),
    "ray": ("dnnc/engines/cluster/nodes/ray_cluster.py",),
    "zmq": ("dnnc/engines/cluster/*",),
    "safetensors": ("dnnc/engines/torch/*",),
    "tokenizers": ("dnnc/cli/commands/generate.py",),
    "typer": ("dnnc/cli/*",),
    "rich": ("dnnc/cli/*", "dnnc/report/*"),
    "numpy": ("*",),
    "ml_dtypes": ("dnnc/*",),
}
"""Third-party libraries, and the only files that may import each."""

ROOMS = {
    "ir": (("core",), ("ops", "system"), ("text",), ("layout_rules",), ("verifier",)),
    "dnnc": (
        ("onnx",),
        ("build",),
        ("data", "report"),
        ("zoo", "engines"),
        ("machines",),
        ("search_tag",),
        ("compile",),
        ("study", "check", "workloads"),
        ("api",),
        ("cli",),
    ),
}
"""The rooms of a package in the order of their imports: a room may import those before it, and beside it without a circle."""

MOST_IN_A_FOLDER = 14
ONE_FILE_AN_ITEM = ("dnnc/machines/presets", "dnnc/zoo", "dnnc/cli/commands", "tests")
"""Folders with one file for each item of a list may hold more."""

BELOW_PASSES = tuple(
    f"passes.{room}" for room in ("graph", "solvers", "costs", "meshes", "stages", "timeline", "plan", "framework")
)
"""The rooms that all passes share, each of which may import those before it; a pass may import all of them and itself."""

WRITTEN_HERE = ("dnnc/engines/torch/statements/run.py", "dnnc/engines/torch/files.py")
"""Files that run text which dnnc itself wrote from a checked program, or the programs of a training build, which are code by
whoever made it (the guide says so)."""

FORBIDDEN = {"pickle", "cPickle", "dill", "cloudpickle", "shelve", "marshal"}
UNPICKLE = ("_object", "_object_list")
"""Ends of the names of those calls of ``torch.distributed`` that unpickle what another process sends."""
MAX_LINES = 700
MOST_ENTRIES = 14
"""Files and folders of a room of ``passes.partition``."""


def files_of_tests() -> list[Path]:
    return sorted(path.relative_to(ROOT) for path in (ROOT / "tests").rglob("*.py"))


def imports() -> Iterator[tuple[Path, int, str]]:
    """File, line and top-level module of every absolute import, wherever it stands."""
    for path, node in nodes(ast.Import):
        for alias in node.names:
            yield path, node.lineno, alias.name.partition(".")[0]
    for path, source in nodes(ast.ImportFrom):
        if source.level == 0 and source.module:
            yield path, source.lineno, source.module.partition(".")[0]


def test_imports_run_one_way() -> None:
    wrong = [
        f"{path}:{line}: {path.parts[0]} imports {target}"
        for path, line, target in imports()
        if target in PACKAGES and PACKAGES.index(target) > PACKAGES.index(path.parts[0])
    ]
    assert not wrong, f"allowed is {' <- '.join(PACKAGES)}:\n" + "\n".join(wrong)


@functools.cache
def imported() -> dict[str, set[str]]:
    """The modules of the packages, each with those that it imports, wherever the import stands. ``from package import name``
    imports the submodule where there is one of that name, else the package; a package on the way to a submodule does not
    count."""
    modules = {module_name(path): path for path in sources()}
    targets: dict[str, set[str]] = {name: set() for name in modules}
    for path, node in nodes(ast.Import):
        targets[module_name(path)] |= {alias.name for alias in node.names}
    for path, source in nodes(ast.ImportFrom):
        if source.module:
            inner = [f"{source.module}.{alias.name}" for alias in source.names]
            targets[module_name(path)] |= {target if target in modules else source.module for target in inner}
    return {name: {target for target in of_name if target in modules and target != name} for name, of_name in targets.items()}


def test_no_circle_of_modules() -> None:
    graph = nx.DiGraph((name, target) for name, targets in imported().items() for target in targets)
    circles = sorted(sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1)
    assert not circles, f"each module of a circle needs all others; move what they share below them: {circles}"


def test_no_circle_of_rooms() -> None:
    """Nor of the files and folders at the top of each package: ``dnnc.engines.onnxruntime.write`` writes what
    ``dnnc.engines.onnxruntime`` reads by way of ``dnnc.build``."""
    rooms = {(room_of(name), room_of(target)) for name, targets in imported().items() for target in targets}
    graph = nx.DiGraph((room, target) for room, target in rooms if room != target)
    circles = sorted(sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1)
    assert not circles, f"each room of a circle needs all others; move what they share below them: {circles}"


@pytest.mark.parametrize("package", sorted(ROOMS))
def test_rooms_are_imported_downwards(package: str) -> None:
    """A file knows its room from its path; what lies in no room (``__init__``) may import all."""
    rank = {room: level for level, rooms in enumerate(ROOMS[package]) for room in rooms}
    found = {
        (module, room_of(target))
        for module, targets in imported().items()
        for target in targets
        if module.startswith(f"{package}.") and target.startswith(f"{package}.")
        if module.split(".")[1] in rank and rank.get(target.split(".")[1], -1) > rank[module.split(".")[1]]
    }
    wrong = sorted(f"{module} imports {room}" for module, room in found)
    assert not wrong, f"the order is {ROOMS[package]}:\n" + "\n".join(wrong)


def test_what_engines_share_of_hosts_lies_below_them() -> None:
    """``dnnc.engines.hosts`` imports no engine; the rooms of ``dnnc.engines.cluster`` behind it import those before them."""
    stacked = ("dnnc.engines.hosts.", "dnnc.engines.cluster.network.", "dnnc.engines.cluster.files.")
    wrong = []
    for number, room in enumerate(stacked):
        watched = "dnnc.engines." if number == 0 else "dnnc.engines.cluster."
        for module, targets in imported().items():
            if module.startswith(room):
                above = [one for one in targets if one.startswith(watched) and not one.startswith(stacked[: number + 1])]
                wrong += [f"{module} imports {target}" for target in sorted(above)]
    assert not wrong, "\n".join(wrong)


def test_folders_show_their_idea() -> None:
    """A folder of the packages has at most 14 entries, README, ``__init__``, ``faults``, ``py.typed`` and the licence aside."""
    aside = ("README.md", "__init__.py", "__main__.py", "faults.py", "py.typed", "LICENSE")
    entries: dict[str, set[str]] = {}
    for path in sources():
        for folder, entry in zip(path.parents, (path, *path.parents), strict=False):
            entries.setdefault(folder.as_posix(), set()).add(entry.name)
    crowded = {
        folder: len(names - set(aside))
        for folder, names in entries.items()
        if folder.startswith(("dnnc", "ir", "passes", "grammars")) and folder not in ONE_FILE_AN_ITEM
        if len(names - set(aside)) > MOST_IN_A_FOLDER
    }
    assert not crowded, f"more than {MOST_IN_A_FOLDER} entries; find the natural seam: {crowded}"


def test_each_file_is_told_in_its_room() -> None:
    """The docstring of a folder's ``__init__`` has the name of each module and package in it in double backticks, or a README
    there or above has the name. In a list, what the docstring names is there."""
    wrong = []
    for folder in sorted({path.parent for path in sources()}):
        if folder.as_posix() in ONE_FILE_AN_ITEM or not (ROOT / folder / "__init__.py").exists():
            continue
        told = ast.get_docstring(tree_of(folder / "__init__.py")) or ""
        readmes = [ROOT / place / "README.md" for place in (folder, *folder.parents[:-1])]
        words = set(re.findall(r"\w+", "".join(text.read_text(encoding="utf-8") for text in readmes if text.exists())))
        words |= set(re.findall(r"\w+", " ".join(re.findall(r"``([^`]+)``", told))))
        modules = {path.stem for path in sources() if path.parent == folder}
        packages = {path.parent.name for path in sources() if path.parent.parent == folder and path.name == "__init__.py"}
        missing = (modules | packages) - words - {"__init__", "__main__", "faults"}
        there = {entry.name.removesuffix(".py") for entry in (ROOT / folder).iterdir()}
        listed = re.findall(r"``([\w.]+)/?``", " ".join(re.findall(r"^- (``[^:]*):", told, re.M)))
        wrong += [f"{folder} does not tell of {name}" for name in sorted(missing)]
        wrong += [f"{folder} has no {name}" for name in listed if name.removesuffix(".py") not in there]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("searching", ["partition", "reference"])
def test_rooms_of_searches_are_small_and_stacked(searching: str) -> None:
    """Their sub-packages have 14 entries each at most, and no circle of imports joins them."""
    folder = ROOT / "passes" / searching
    entries = {
        room: [path for path in room.iterdir() if path.suffix == ".py" or (path / "__init__.py").is_file()]
        for room in (folder, *(path for path in folder.iterdir() if path.is_dir()))
    }
    crowded = {str(room.relative_to(ROOT)): len(found) for room, found in entries.items() if len(found) > MOST_ENTRIES}
    assert not crowded, f"more than {MOST_ENTRIES} entries; find the natural seam: {crowded}"
    rooms = {
        (".".join(name.split(".")[:3]), ".".join(target.split(".")[:3]))
        for name, targets in imported().items()
        for target in targets
        if name.startswith(f"passes.{searching}.") and target.startswith(f"passes.{searching}.")
    }
    graph = nx.DiGraph((room, target) for room, target in rooms if room != target)
    circles = sorted(sorted(part) for part in nx.strongly_connected_components(graph) if len(part) > 1)
    assert not circles, f"each room of a circle needs all others; move what they share below them: {circles}"


def test_no_pass_imports_another() -> None:
    """Arrows go down: ``reference``, then a pass, then the rooms that all passes share, from the last to the first."""

    def below(room: str) -> tuple[str, ...]:
        return BELOW_PASSES[: BELOW_PASSES.index(room)] if room in BELOW_PASSES else BELOW_PASSES

    found = {
        (module, target)
        for module, targets in imported().items()
        for target in targets
        if module.startswith("passes.") and target.startswith("passes.")
        if room_of(module) != "passes.reference"
        if room_of(target) not in (room_of(module), *below(room_of(module)))
    }
    wrong = sorted(f"{module} imports {target}" for module, target in found)
    assert not wrong, "move what two passes need to a room below them:\n" + "\n".join(wrong)


def room_of(module: str) -> str:
    """A file or folder at the top of a package: ``passes.prepare.fold`` of itself, ``dnnc.engines.onnxruntime`` of all that it
    holds."""
    return ".".join(module.split(".")[:2])


def test_no_relative_imports() -> None:
    wrong = [f"{path}:{node.lineno}" for path, node in nodes(ast.ImportFrom) if node.level]
    assert not wrong, "a relative import hides which package is meant:\n" + "\n".join(wrong)


def test_third_party_doors() -> None:
    wrong = []
    for path, line, target in imports():
        if target in PACKAGES or target in sys.stdlib_module_names:
            continue
        doors = DOORS.get(target)
        if doors is None:
            wrong.append(f"{path}:{line}: {target} is not a known dependency")
        elif not any(fnmatch(path.as_posix(), door) for door in doors):
            wrong.append(f"{path}:{line}: {target} may only be imported in {', '.join(doors)}")
    assert not wrong, "\n".join(wrong)


def test_one_file_knows_the_milp_solver() -> None:
    users = {str(path) for path, _, target in imports() if target == "highspy"}
    assert len(users) <= 1, users


def test_no_code_from_data() -> None:
    wrong = [f"{path}:{line}: {target}" for path, line, target in imports() if target in FORBIDDEN]
    for path, node in nodes(ast.Call):
        runs_code = isinstance(node.func, ast.Name) and node.func.id in ("eval", "exec", "compile")
        if runs_code and path.as_posix() not in WRITTEN_HERE:
            wrong.append(f"{path}:{node.lineno}: {ast.unparse(node.func)}()")
        if isinstance(node.func, ast.Attribute) and ast.unparse(node.func).endswith("np.load"):
            keywords = {keyword.arg for keyword in node.keywords}
            if "allow_pickle" not in keywords:
                wrong.append(f"{path}:{node.lineno}: np.load without allow_pickle=False")
    for path, attribute in nodes(ast.Attribute):
        if attribute.attr.endswith(UNPICKLE):
            wrong.append(f"{path}:{attribute.lineno}: {attribute.attr}")
    for path, keyword in nodes(ast.keyword):
        if keyword.arg == "allow_pickle" and not _is_false(keyword.value):
            wrong.append(f"{path}:{keyword.value.lineno}: allow_pickle")
    assert not wrong, "pickles, eval and exec run code that a file brought along:\n" + "\n".join(wrong)


def _is_false(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is False


def test_an_assert_tells_the_type_checker_and_nothing_else() -> None:
    """``python -O`` drops asserts: one says that a value is not None, or of a class. What must hold is an ``if`` with a
    ``raise``."""

    def narrows(test: ast.expr) -> bool:
        if isinstance(test, ast.Call):
            return isinstance(test.func, ast.Name) and test.func.id in ("isinstance", "issubclass")
        return isinstance(test, ast.Compare) and isinstance(test.ops[0], ast.IsNot)

    found = [f"{path}:{node.lineno}" for path, node in nodes(ast.Assert) if not narrows(node.test)]
    assert not found, "what must hold is an if with a raise:\n" + "\n".join(found)


def test_dialects_are_passed_in() -> None:
    """dnnc knows ONNX's operators: who verifies a module there, or lets passes do it, says so."""
    wanted = {"load_module", "verify", "ir.load_module", "ir.verify", "PassContext"}
    wrong = [
        f"{path}:{node.lineno}: {ast.unparse(node.func)}() without dialects"
        for path, node in nodes(ast.Call)
        if path.parts[0] == "dnnc" and "verify_plan" not in path.parts  # whose verify is of plans
        if isinstance(node.func, ast.Name | ast.Attribute) and ast.unparse(node.func) in wanted
        if "dialects" not in {keyword.arg for keyword in node.keywords}
    ]
    assert not wrong, "\n".join(wrong)


def test_top_level_is_fixed() -> None:
    listed = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout: which files belong to the project is not known")
    names = {name.partition("/")[0] for name in listed.stdout.split("\0") if name}
    extra = sorted(name for name in names - TOP_LEVEL if not name.startswith("."))
    assert not extra, f"nothing is added beside {sorted(TOP_LEVEL)}; documents lie beside what they describe: {extra}"


def test_every_folder_of_tests_is_a_package() -> None:
    folders = {path.parent for path in files_of_tests()}
    missing = sorted(str(folder) for folder in folders if not (ROOT / folder / "__init__.py").is_file())
    assert not missing, missing


def test_files_stay_readable() -> None:
    lengths = {
        str(path): len((ROOT / path).read_text(encoding="utf-8").splitlines()) for path in (*sources(), *files_of_tests())
    }
    long = {path: length for path, length in lengths.items() if length > MAX_LINES}
    assert not long, f"longer than {MAX_LINES} lines; find the natural seam: {long}"


def test_nobody_compares_with_the_name_of_an_objective() -> None:
    """What is true of an objective is asked of it: a list of names that somebody keeps is not told of a new one."""
    table = Path("ir/core/objectives.py")
    names = {objective.name for objective in OBJECTIVES}
    compared: list[tuple[Path, ast.AST]] = [
        (path, side) for path, node in nodes(ast.Compare) for side in (node.left, *node.comparators)
    ]
    compared += [(path, case.pattern) for path, case in nodes(ast.match_case)]
    wrong = [
        f"{path}:{part.lineno}: compares with '{part.value}'"
        for path, side in compared
        if path != table
        for part in ast.walk(side)
        if isinstance(part, ast.Constant) and part.value in names
    ]
    assert not wrong, "ask the objective (ir/core/objectives.py):\n" + "\n".join(wrong)


def test_every_file_says_what_it_is() -> None:
    silent = [str(path) for path in sources() if not ast.get_docstring(tree_of(path))]
    assert not silent, f"a file opens with its one idea: {silent}"


def test_public_packages_state_their_names() -> None:
    missing = []
    for path in sources():
        if path.name != "__init__.py":
            continue
        tree = tree_of(path)
        body = [node for node in tree.body if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant))]
        names = {
            target.id
            for node in body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        names |= {node.target.id for node in body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)}
        if body and "__all__" not in names:
            missing.append(str(path))
    assert not missing, f"no __all__: {missing}"
    elsewhere = [str(path) for path in sources() if path.name != "__init__.py" and "\n__all__ = " in path.read_text("utf-8")]
    assert not elsewhere, f"__all__ in a file that is no package: {elsewhere}"


def test_all_names_exist() -> None:
    """What ``__all__`` promises can be imported."""
    for name in (package_name(path) for path in sources() if path.name == "__init__.py"):
        module = importlib.import_module(name)
        missing = [promised for promised in getattr(module, "__all__", ()) if not hasattr(module, promised)]
        assert not missing, (name, missing)


def package_name(path: Path) -> str:
    return ".".join(path.parent.parts)


def module_name(path: Path) -> str:
    return package_name(path) if path.name == "__init__.py" else ".".join(path.with_suffix("").parts)


COMMANDS = sorted(f"dnnc.cli.{path.stem}" for path in (ROOT / "dnnc" / "cli").glob("*.py") if path.stem != "__init__")


@pytest.mark.parametrize("module", ["ir", "passes", "dnnc", "dnnc.compile.driver", ", ".join(COMMANDS)])
def test_imports_stay_light(module: str) -> None:
    """``dnnc --help`` answers at once: nothing that takes long to import is imported before a command needs it."""
    heavy = ("lark", "networkx", "numba", "highspy", "onnx", "onnx_ir", "onnxruntime", "rich", "numpy", "ml_dtypes")
    code = f"import sys, {module}; print(*sorted(set({heavy!r}) & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert not done.stdout.split(), f"import {module} loads {done.stdout.strip()}"


def test_reports_do_not_load_the_search_for_layouts() -> None:
    code = "import sys, dnnc.report; print('passes.partition.layouts' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert done.stdout.strip() == "False"


def test_an_outcome_has_one_word() -> None:
    """``status`` is set to and compared with the words of ``ir.core.outcomes`` alone; words of earlier versions stand there."""
    told: list[tuple[Path, ast.AST]] = [(path, word.value) for path, word in nodes(ast.keyword) if word.arg == "status"]
    told += [
        (path, node)
        for path, node in nodes(ast.Compare)
        if any(isinstance(side, ast.Attribute) and side.attr == "status" for side in (node.left, *node.comparators))
    ]
    words = [(path, part) for path, node in told for part in ast.walk(node) if isinstance(part, ast.Constant)]
    words = [(path, part) for path, part in words if isinstance(part.value, str) and part.value not in OUTCOMES]
    words += [(path, part) for path, part in nodes(ast.Constant) if part.value in ("feasible", "uncertain")]
    assert [f"{path}:{part.lineno}: {part.value}" for path, part in words if path != Path("ir/core/outcomes.py")] == []
