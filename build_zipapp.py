#!/usr/bin/env python3
"""Builds reactant-node into one file: `python3 build_zipapp.py` is all a fresh machine needs.

Steps, all below build/zipapp/, the first two kept for the next build:

1. a virtual environment of the chosen Python with shiv and this project's build backend;
2. the dependencies as wheels only, for that Python, less what the node never imports (`DROPPED`);
3. this checkout as a package;
4. shiv lays 2 and 3 out as a zipapp;
5. `finish` compresses it and gives it a start of our own from config/zipapp/: a shell line that finds the right
   Python, a check of Python, machine and C library that answers in one line, and careful unpacking.

The file belongs to one minor version of Python, because the wheels do. With the same wheels and checkout the result
is the same, byte for byte.
"""

from __future__ import annotations

import sys

if sys.version_info < (3, 11):  # noqa: UP036 - this is where an older one is told so
    sys.exit("build_zipapp.py: needs Python 3.11 or newer; start it as: python3.11 build_zipapp.py")

import argparse
import contextlib
import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import tomllib
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

CHECKOUT = Path(__file__).resolve().parent
STARTER = CHECKOUT / "config" / "zipapp"
SHIV = "shiv==1.0.8"
FLAVORS = ("cpu", "cuda")
EX_CONFIG = 78

DROPPED = {
    "bin": "console scripts of the dependencies; they name this machine's paths",
    "*.dist-info/RECORD": "lists files and byte code that are not in the archive",
    "*.dist-info/direct_url.json": "names the folder this was built in",
    "**/tests": "the dependencies' own tests",
    "**/*.pyi": "type stubs, for type checkers only",
    "**/*.pxd": "Cython declarations, for compilers only",
    "**/*.h": "C headers, for compilers only",
    "example.py": "sample script of nvidia-ml-py",
    "flatbuffers*": "only onnxruntime/tools reads flatbuffers from Python",
    "packaging*": "only onnxruntime/transformers and /quantization import it",
    "numpy/_core/include": "what is left beside the C headers",
    "numpy/_core/lib": "static libraries for C extensions",
    "numpy/random/lib": "static libraries for C extensions",
    "numpy/distutils": "builds C extensions",
    "numpy/f2py": "builds Fortran extensions",
    "onnxruntime/backend": "needs the onnx package, which the node does not have",
    "onnxruntime/capi/libonnxruntime.so.*": "for C programs: the Python module has the runtime linked in, 35 MB again",
    "onnxruntime/datasets": "sample models",
    "onnxruntime/quantization": "offline model conversion, needs the onnx package",
    "onnxruntime/tools": "offline model conversion",
    "onnxruntime/transformers": "offline model conversion, needs torch",
}
"""What is installed with the dependencies and never imported by a running node: pattern and reason."""

SHELL_START = """\
#!/bin/sh
for python in python{version} python3; do
  command -v "$python" >/dev/null 2>&1 && exec "$python" "$0" "$@"
done
echo "$0: needs Python {version}, and finds neither python{version} nor python3 on PATH" >&2
exit {refused}
"""
"""First lines of the file, so that it starts with the Python it was built for where `python3` is another one."""


class BuildError(Exception):
    """The build cannot go on; the message says what to do."""


@dataclass(frozen=True, slots=True)
class Target:
    """The Python that the file is built with and for.

    Attributes:
        executable: path of the interpreter.
        python: implementation and minor version, as zipapp_main.host_python says it: `cpython 3.11`.
        machine: the kernel's name for the processor: `x86_64`, `aarch64`.
    """

    executable: str
    python: str
    machine: str

    @property
    def version(self) -> str:
        """The minor version alone: `3.11`."""
        return self.python.split()[1]


@dataclass(frozen=True, slots=True)
class Start:
    """What the file's first lines have to know (config/zipapp/): the `zipapp_build` module, in upper case.

    Attributes:
        python, machine: those of the `Target`.
        glibc: oldest GNU C library that every wheel inside accepts, (major, minor).
        folder: name of the unpacked folder, unique to its contents.
    """

    python: str
    machine: str
    glibc: tuple[int, int]
    folder: str

    def as_module(self) -> str:
        """Source of the module, readable by any Python."""
        fields = ((name.upper(), getattr(self, name)) for name in self.__dataclass_fields__)
        return "".join(f"{name} = {value!r}\n" for name, value in fields)


def main(argv: Sequence[str] | None = None) -> int:
    """Builds as the command line says; returns the exit code."""
    options = parse(argv)
    try:
        output = build(options.flavor, options.output, probe(options.python))
    except BuildError as error:
        print(f"build_zipapp.py: {error}", file=sys.stderr)
        return 1
    print(f"{output}: {output.stat().st_size / 1e6:.1f} MB")
    return 0


def parse(argv: Sequence[str] | None) -> argparse.Namespace:
    """Options, with the output named after the flavor unless it is given."""
    parser = argparse.ArgumentParser(description="Build reactant-node into one file.")
    parser.add_argument("--flavor", choices=FLAVORS, default="cpu", help="which ONNX Runtime goes in (default: cpu)")
    parser.add_argument("--output", type=Path, help="default: dist/reactant-node.pyz, or dist/reactant-node-cuda.pyz")
    parser.add_argument(
        "--python",
        default=sys.executable,
        help="interpreter to build with; the file then belongs to its minor version (default: the one running this)",
    )
    options = parser.parse_args(argv)
    suffix = "" if options.flavor == "cpu" else f"-{options.flavor}"
    options.output = options.output or CHECKOUT / "dist" / f"reactant-node{suffix}.pyz"
    return options


def probe(python: str) -> Target:
    """Asks an interpreter what it is, in the words of the check that the file starts with.

    Raises:
        BuildError: not an interpreter, or one older than the project supports.
    """
    question = (
        "import json, sys, zipapp_main as host;"
        "print(json.dumps([sys.executable, host.host_python(), host.host_machine(), sys.version_info >= (3, 11)]))"
    )
    stub = "import sys, types; sys.modules['zipapp_build'] = types.ModuleType('zipapp_build');"
    path = f"sys.path.insert(0, {str(STARTER)!r});"
    command = [python, "-I", "-B", "-c", stub + path + question]
    try:
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(
            f"--python: got {python!r}, which does not run ({error}); use a Python 3.11 or newer"
        ) from error
    executable, name, machine, supported = json.loads(answer)
    if not supported:
        raise BuildError(f"--python: got {python!r}, which is {name}; use a Python 3.11 or newer")
    return Target(executable, name, machine)


def build(flavor: str, output: Path, target: Target) -> Path:
    """Builds one flavor for one Python; returns the file.

    Raises:
        BuildError: a step failed; its own output is on the terminal.
    """
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))
    requirements = requirements_of(project, flavor)
    tools = [SHIV, *project["build-system"]["requires"]]
    inputs = json.dumps([target.executable, target.python, requirements, tools, sorted(DROPPED)])
    digest = hashlib.sha256(inputs.encode()).hexdigest()[:12]
    work = CHECKOUT / "build" / "zipapp" / f"{flavor}-{target.python.replace(' ', '-')}-{digest}"
    work.mkdir(parents=True, exist_ok=True)
    with exclusive(work / "lock"):
        python = make_environment(work / "environment", target, tools)
        dependencies = install_dependencies(work / "dependencies", python, requirements)
        application = install_application(work / "application", python)
        for packages in (dependencies, application):
            check_layout(packages)
        laid_out = lay_out(work / "laid-out.pyz", python, [dependencies, application])
        start = describe(laid_out, flavor, target)
        output.parent.mkdir(parents=True, exist_ok=True)
        finish(laid_out, output, start)
        laid_out.unlink()
    return output


def requirements_of(project: dict[str, Any], flavor: str) -> list[str]:
    """Everything the file has to hold but the project itself, from a parsed pyproject.toml."""
    declared: dict[str, Any] = project["project"]
    return [*declared["dependencies"], *declared["optional-dependencies"][flavor]]


def make_environment(folder: Path, target: Target, tools: Sequence[str]) -> Path:
    """The build's own virtual environment; returns its interpreter."""
    python = folder / "bin" / "python"
    done = folder / "complete"
    if not done.exists():
        shutil.rmtree(folder, ignore_errors=True)
        hint = "on Debian and Ubuntu, `apt install python3-venv` brings what is missing"
        command([target.executable, "-m", "venv", str(folder)], f"the build environment could not be made; {hint}")
        pip(python, *tools)
        done.touch()
    return python


def install_dependencies(folder: Path, python: Path, requirements: Sequence[str]) -> Path:
    """The dependencies, as wheels, without what is never imported; returns the folder."""
    if not folder.exists():
        unfinished = folder.with_suffix(".part")
        shutil.rmtree(unfinished, ignore_errors=True)
        pip(python, "--only-binary=:all:", "--no-compile", "--target", str(unfinished), *requirements)
        drop(unfinished)
        # Without this file the folder is a namespace, and any `google` package on the host would win over it.
        (unfinished / "google" / "__init__.py").touch()
        unfinished.rename(folder)
    return folder


def install_application(folder: Path, python: Path) -> Path:
    """This checkout as an installed package; returns the folder."""
    shutil.rmtree(folder, ignore_errors=True)
    pip(python, "--no-deps", "--no-build-isolation", "--no-compile", "--target", str(folder), str(CHECKOUT))
    drop(folder)
    return folder


def drop(packages: Path) -> None:
    """Removes what `DROPPED` names."""
    for pattern in DROPPED:
        for path in sorted(packages.glob(pattern), reverse=True):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def check_layout(packages: Path) -> None:
    """Refuses what a folder put first on sys.path cannot hold.

    Raises:
        BuildError: a .pth file, which nobody would run there, or a module that would hide one of Python's own.
    """
    for path in packages.iterdir():
        if path.suffix == ".pth":
            raise BuildError(f"{path.name}: a dependency relies on a .pth file, which config/zipapp does not run")
        if path.stem in sys.stdlib_module_names:
            raise BuildError(f"{path.name}: a dependency would hide Python's own module {path.stem!r}")


def lay_out(archive: Path, python: Path, packages: Sequence[Path]) -> Path:
    """Lets shiv make its zipapp of the packages, uncompressed, because `finish` compresses; returns it."""
    sources = [argument for folder in packages for argument in ("--site-packages", str(folder))]
    options = ["--entry-point", "reactant_node.cli:main", "--reproducible", "--uncompressed", "--output-file"]
    command([str(python), "-m", "shiv", *sources, *options, str(archive)], "shiv could not lay the archive out")
    return archive


def describe(laid_out: Path, flavor: str, target: Target) -> Start:
    """What the finished file has to know of itself, from what shiv laid out."""
    with zipfile.ZipFile(laid_out) as archive:
        identity = json.loads(archive.read("environment.json"))["build_id"][:12]
        wheels = [archive.read(name).decode() for name in archive.namelist() if name.endswith(".dist-info/WHEEL")]
    python = target.python.replace(" ", "-")
    return Start(target.python, target.machine, required_glibc(wheels), f"reactant-node-{flavor}-{python}-{identity}")


def required_glibc(wheels: Sequence[str]) -> tuple[int, int]:
    """The oldest GNU C library that all wheels accept.

    Args:
        wheels: texts of their WHEEL files. One wheel may carry several tags and accepts the oldest of them.

    Returns:
        (major, minor); (0, 0) where no wheel holds compiled code.
    """
    aliases = {
        "manylinux1_": "manylinux_2_5_",
        "manylinux2010_": "manylinux_2_12_",
        "manylinux2014_": "manylinux_2_17_",
    }
    accepted: list[tuple[int, int]] = []
    for wheel in wheels:
        for alias, name in aliases.items():
            wheel = wheel.replace(alias, name)  # noqa: PLW2901 - the same text under today's names
        if tags := re.findall(r"manylinux_(\d+)_(\d+)_", wheel):
            accepted.append(min((int(major), int(minor)) for major, minor in tags))
    return max(accepted, default=(0, 0))


def finish(laid_out: Path, output: Path, start: Start) -> None:
    """Writes the file: what shiv laid out, compressed, behind a start of our own.

    Args:
        laid_out: shiv's archive; its order and times are kept, so that equal input gives equal bytes.
        output: replaced in one step, so that nobody ever starts half a file.
        start: what the first lines have to know.
    """
    shell = SHELL_START.format(version=start.python.split()[1], refused=EX_CONFIG)
    own = {
        "__main__.py": (STARTER / "zipapp_main.py").read_bytes(),
        "zipapp_launch.py": (STARTER / "zipapp_launch.py").read_bytes(),
        "zipapp_build.py": start.as_module().encode(),
    }
    unfinished = output.with_name(f".{output.name}.part")
    with unfinished.open("wb") as file:
        file.write(shell.encode())
        with (
            zipfile.ZipFile(laid_out) as source,
            zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive,
        ):
            for member in source.infolist():
                if member.filename != "__main__.py":
                    archive.writestr(copy_of(member), source.read(member))
            for name, content in own.items():
                archive.writestr(zipfile.ZipInfo(name), content, zipfile.ZIP_DEFLATED)
    unfinished.chmod(0o755)
    unfinished.replace(output)


def copy_of(member: zipfile.ZipInfo) -> zipfile.ZipInfo:
    """The same entry, to be compressed."""
    copy = zipfile.ZipInfo(member.filename, member.date_time)
    copy.external_attr = member.external_attr
    copy.compress_type = zipfile.ZIP_DEFLATED
    return copy


def pip(python: Path, *arguments: str) -> None:
    """Installs with the build environment's pip."""
    options = ["--quiet", "--no-input", "--disable-pip-version-check", "--no-warn-script-location"]
    command([str(python), "-m", "pip", "install", *options, *arguments], "pip could not install what the build needs")


def command(arguments: Sequence[str], failure: str) -> None:
    """Runs one step with its output on the terminal and nothing of the caller's Python settings.

    Raises:
        BuildError: with `failure`, when it does not end well.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    try:
        subprocess.run(arguments, check=True, env=environment, stdout=sys.stderr)
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"{failure} ({error})") from error


@contextlib.contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Lets one build at a time use a work folder."""
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


if __name__ == "__main__":
    sys.exit(main())
