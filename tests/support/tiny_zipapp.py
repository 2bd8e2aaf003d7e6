"""A zipapp with our start and a program of a few lines in place of the node, for tests of the start alone."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import build_zipapp

PROGRAM = {
    "reactant_node/__init__.py": "",
    "reactant_node/__main__.py": """\
import sys
from reactant_node.program import main
if __name__ == "__main__":
    main(sys.argv[1:])
""",
    # `spawn` waits for a line on standard input, shows a traceback, and starts a process that imports a new module.
    "reactant_node/program.py": """\
import multiprocessing, os, sys, traceback
import dependency
def child():
    import reactant_node.late
    archives = [entry for entry in sys.path if os.path.isfile(entry)]
    print("child", reactant_node.late.__file__, archives, flush=True)
def main(arguments):
    print("parent", __file__, dependency.WHOSE, flush=True)
    if arguments[:1] == ["spawn"]:
        sys.stdin.readline()
        os.chdir("/")
        process = multiprocessing.get_context("spawn").Process(target=child)
        process.start()
        process.join(30)
        print("exit", process.exitcode, flush=True)
        traceback.print_stack()
""",
    "reactant_node/late.py": "",
    "dependency.py": "WHOSE = 'ours'\n",
    "ballast.py": "#" * 20_000,
}


def own_start() -> build_zipapp.Start:
    """What fits the Python that runs the tests, on any C library."""
    target = build_zipapp.probe(sys.executable)
    return build_zipapp.Start(target.python, target.machine, (0, 0), "tiny-1")


def make_tiny_zipapp(folder: Path, **changes: Any) -> Path:
    """Writes `folder`/tiny.pyz, with some fields of its start changed; returns it."""
    laid_out = folder / "laid-out.zip"
    with zipfile.ZipFile(laid_out, "w") as archive:
        for name, content in PROGRAM.items():
            archive.writestr(f"site-packages/{name}", content)
        archive.writestr("__main__.py", "raise SystemExit('the start of shiv')")
    output = folder / "tiny.pyz"
    build_zipapp.finish(laid_out, output, dataclasses.replace(own_start(), **changes))
    laid_out.unlink()
    return output


def clean_environment(home: Path | str, **more: str) -> dict[str, str]:
    """An environment with this home folder and nothing that moves the unpacked folder or Python's modules."""
    kept = {name: os.environ[name] for name in ("PATH", "LANG") if name in os.environ}
    return {**kept, "HOME": str(home), **more}


def start_zipapp(*command: Path | str, home: Path | str, **more: str) -> subprocess.CompletedProcess[str]:
    """Runs `python command...` to its end in a clean environment."""
    arguments = [sys.executable, *map(str, command)]
    environment = clean_environment(home, **more)
    return subprocess.run(arguments, env=environment, capture_output=True, text=True, timeout=60, check=False)
