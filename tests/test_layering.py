"""The plan of the house: floors, directions, doors for foreign packages, pure files. Read straight from the imports.

A better arrangement changes the tables below, in the same commit as the code.
"""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "reactant_node"

FLOORS = (
    ("errors.py", "dtypes.py", "tensors.py", "reports.py", "clock.py"),
    ("config/", "models/"),
    ("http2/", "rpc/", "scheduling/", "residency/"),
    ("runtime/", "shm/", "transport/", "kserve/", "telemetry/", "client/"),
    ("supervisor/", "gateway/", "worker/"),
    ("launch.py", "overview.py", "health.py", "cli.py", "__main__.py"),
)
"""A file may import its own room and lower floors. Floors 0 and 5 are one room each."""

ALONE = ("http2/",)
"""Rooms that import nothing of ours, not even lower floors."""

DOORS = {
    "onnxruntime": ("runtime/ort.py",),
    "grpc": ("transport/grpcio.py",),
    "google": ("kserve/",),
    "yaml": ("config/documents.py", "models/manifest.py"),
    "prometheus_client": ("telemetry/",),
    "pynvml": ("supervisor/devices.py", "telemetry/"),
    "numpy": (
        *("dtypes.py", "tensors.py", "models/signature.py", "kserve/codec.py", "kserve/elements.py"),
        *("runtime/", "shm/", "worker/", "client/"),
    ),
    "multiprocessing": ("supervisor/process.py",),
    "mmap": ("shm/",),
}
"""Who may import what is not ours. The rest of the standard library is open to all but the pure files."""

PURE = (
    *("errors.py", "dtypes.py", "tensors.py", "reports.py"),
    *("config/schema.py", "config/checks.py", "config/keys.py", "config/problems.py", "config/environment.py"),
    *("config/settings.py", "config/options.py", "config/placement.py", "config/public.py", "config/materialized.py"),
    *("models/signature.py", "models/changes.py"),
    *("http2/", "rpc/", "scheduling/", "residency/", "kserve/peek.py"),
    *("supervisor/child.py", "supervisor/spec.py", "supervisor/logs.py", "supervisor/shutdown.py"),
    *("gateway/table.py", "gateway/selection.py", "gateway/packing.py"),
)
"""Files without sockets, threads, processes, files or clock: what they need of these is an argument."""

IMPURE = frozenset(
    "asyncio concurrent datetime fcntl glob http io mmap multiprocessing os random sched select selectors shutil signal"  # noqa: SIM905 - thirty lines otherwise
    " socket socketserver ssl subprocess tempfile threading time urllib _thread".split()
)

LATE = {
    "cli.py": "reactant_node.",
    "worker/entry.py": "reactant_node.worker.assembly",
    "supervisor/devices.py": "pynvml",
}
"""Imports inside functions, by prefix: each keeps something heavy or optional away from those who do not use it."""


@dataclass(frozen=True, slots=True)
class Import:
    """One import: full name of the module, line, and whether it stands inside a function."""

    module: str
    line: int
    late: bool


def inside(file: str, places: tuple[str, ...]) -> bool:
    """Whether a file is one of the places, or in one that ends with a slash."""
    return any(file == place or (place.endswith("/") and file.startswith(place)) for place in places)


def imports_of(node: ast.AST, *, late: bool = False) -> Iterator[Import]:
    """All imports below a node. `from a import b` counts as `a.b`, which may be a module."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from (Import(alias.name, child.lineno, late) for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            parent = child.module if not child.level else f"reactant_node.<relative>.{child.module}"
            yield from (Import(f"{parent}.{alias.name}", child.lineno, late) for alias in child.names)
        inner = late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef)
        yield from imports_of(child, late=inner)


def floor_and_room(file: str) -> tuple[int, str] | None:
    """Floor number and room of a file below the package; None when the plan has no place for it."""
    for number, rooms in enumerate(FLOORS):
        for room in rooms:
            if inside(file, (room,)):
                return number, room if room.endswith("/") else str(number)
    return None


def file_of(module: str) -> str:
    """The file a module of ours stands for, as far as the tables need it: `reactant_node.a.b` → `a/b.py`."""
    parts = module.split(".")[1:]
    return f"{parts[0]}.py" if inside(f"{parts[0]}.py", sum(FLOORS, ())) else "/".join(parts) + ".py"


def direction_problem(file: str, module: str) -> str | None:
    """What is wrong with one import of ours, or None."""
    if module == "reactant_node.__version__":
        return None
    here, there = floor_and_room(file), floor_and_room(file_of(module))
    if "<relative>" in module:
        return "import by the full name, so that moves show"
    if here is None or there is None:
        return "has no floor: give it a place in FLOORS"
    if here[1] != there[1] and (there[0] >= here[0] or inside(file, ALONE)):
        return "is not below this room: move what both need down, or join the two in launch.py or an assembly"
    return None


def foreign_problem(file: str, module: str) -> str | None:
    """What is wrong with one import from outside, or None."""
    top = module.split(".", maxsplit=1)[0]
    if inside(file, PURE) and top in IMPURE:
        return "is no import for a pure file: take its answer as an argument"
    if top in DOORS:
        return None if inside(file, DOORS[top]) else f"has its door in {', '.join(DOORS[top])}: go through there"
    return None if top in sys.stdlib_module_names else "has no door: choose one file for it and add it to DOORS"


def problems_of(file: str, source: str) -> Iterator[str]:
    """One sentence for each breach in a file.

    Args:
        file: path below the package, with slashes.
        source: its text.
    """
    tree = ast.parse(source)
    for found in imports_of(tree):
        ours = found.module.split(".")[0] == "reactant_node"
        problem = (direction_problem if ours else foreign_problem)(file, found.module)
        if problem is None and found.late and not found.module.startswith(LATE.get(file, " ")):
            problem = "is imported inside a function: move it to the top, or say why in LATE"
        if problem is not None:
            yield f"{file}:{found.line}: {found.module} {problem}"
    if inside(file, PURE):
        opens = (call for call in ast.walk(tree) if isinstance(call, ast.Call) and ast.unparse(call.func) == "open")
        yield from (f"{file}:{call.lineno}: open() in a pure file: take the text as an argument" for call in opens)
    if file.endswith("/__init__.py") and tree.body:
        yield f"{file}:1: is not empty: importing one file of a package would drag in others"


def test_the_house_stands() -> None:
    """Every import of every file follows the plan."""
    files = sorted(path for path in PACKAGE.rglob("*.py") if "pb" not in path.parts and path != PACKAGE / "__init__.py")
    assert files
    problems = [
        problem
        for path in files
        for problem in problems_of(path.relative_to(PACKAGE).as_posix(), path.read_text("utf-8"))
    ]
    assert not problems, "\n" + "\n".join(problems)


@pytest.mark.parametrize(
    ("file", "source", "said"),
    [
        ("errors.py", "import reactant_node.config.schema", "is not below this room"),
        ("runtime/ort.py", "from reactant_node.shm import segment", "is not below this room"),
        ("gateway/server.py", "from reactant_node.worker.entry import main", "is not below this room"),
        ("config/loader.py", "from reactant_node.models import manifest", "is not below this room"),
        ("http2/frames.py", "from reactant_node.errors import Internal", "is not below this room"),
        ("gateway/server.py", "from . import table", "import by the full name"),
        ("attic/box.py", "import reactant_node.errors", "has no floor"),
        ("gateway/server.py", "import grpc.aio", "has its door in transport/grpcio.py"),
        ("gateway/server.py", "import numpy", "has its door in dtypes.py"),
        ("supervisor/supervisor.py", "from multiprocessing import Pipe", "has its door in supervisor/process.py"),
        ("gateway/server.py", "import requests", "has no door"),
        ("supervisor/child.py", "from time import monotonic", "pure file"),
        ("rpc/call.py", "def f():\n    return open('x')", "pure file"),
        ("gateway/server.py", "def f():\n    import json", "inside a function"),
        ("worker/entry.py", "async def f():\n    from reactant_node.worker.service import x", "inside a function"),
        ("gateway/__init__.py", "from reactant_node.gateway.table import Table", "is not empty"),
    ],
)
def test_a_breach_is_found_and_named(file: str, source: str, said: str) -> None:
    """Each rule fails with file, line and the sentence to mend it."""
    (problem,) = problems_of(file, source)
    assert problem.startswith(f"{file}:")
    assert said in problem


@pytest.mark.parametrize(
    ("file", "source"),
    [
        ("launch.py", "from reactant_node.gateway.server import Gateway\nfrom reactant_node.supervisor import child"),
        ("cli.py", "def serve():\n    from reactant_node.launch import run"),
        ("worker/entry.py", "def main():\n    from reactant_node.worker.assembly import run_worker"),
        ("transport/listener.py", "from reactant_node.http2 import frames\nfrom reactant_node.rpc import call"),
        ("runtime/ort.py", "import onnxruntime\nimport numpy as np\nfrom reactant_node.runtime import interface"),
        ("supervisor/supervisor.py", "import os, time\nfrom reactant_node.supervisor import process"),
        ("config/schema.py", "from collections.abc import Mapping\nfrom reactant_node.dtypes import DTYPES"),
    ],
)
def test_what_the_plan_allows_is_no_breach(file: str, source: str) -> None:
    """The rules leave the planned directions open."""
    assert list(problems_of(file, source)) == []


@pytest.mark.parametrize("module", ["cli", "launch", "gateway.server", "supervisor.supervisor"])
def test_the_parent_imports_neither_numpy_nor_onnxruntime(module: str) -> None:
    """It starts fast, holds no CUDA state and survives a broken driver."""
    question = f"import sys, reactant_node.{module}; print([m for m in ('numpy', 'onnxruntime') if m in sys.modules])"
    command = [sys.executable, "-c", question]
    answer = subprocess.run(command, cwd=PACKAGE.parent, check=False, capture_output=True, text=True, timeout=60)
    assert (answer.stdout, answer.stderr) == ("[]\n", "")
