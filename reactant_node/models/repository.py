"""What a model repository holds: roots on disk → one frozen snapshot. Reads names and small files, never a graph.

A model folder is one of three things:

1. `NAME/model.onnx`, version "1", optionally with config.pbtxt
2. `NAME/manifest.yaml` with the file it names (default model.onnx), version "1"
3. `NAME/<number>/model.onnx`, optionally with config.pbtxt beside the numbers: the highest version serves

External data lies beside the model file. Hidden entries, plain files, empty folders and lost+found are no models.
Anything else is listed, refused with its reason: whoever put it there expects it to be served.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from reactant_node.errors import ModelLoadError
from reactant_node.models import manifest, triton
from reactant_node.models.declaration import Declaration

MODEL_FILE = "model.onnx"
HOOKS_FILE = "model.py"

_NAME = re.compile(r"(?!\.|_\.)[A-Za-z0-9_.-]+")
_VERSION = re.compile(r"[1-9][0-9]{0,18}")
_MAX_VERSION = 2**63 - 1
"""Versions are 64-bit on the wire of the clients we follow; 0 and leading zeros are no versions."""

_NO_MODELS = ("lost+found",)
"""What mkfs leaves at the top of a mounted file system."""


class Layout(StrEnum):
    """Which of the three a model folder is."""

    PLAIN = "plain"
    MANIFEST = "manifest"
    VERSIONED = "versioned"


@dataclass(frozen=True, slots=True)
class ModelFolder:
    """A model that may be loaded.

    Attributes:
        name: the folder's name, which is the model's.
        version: the one that serves.
        path: the ONNX file.
        layout: how the folder is laid out.
        declaration: what a file beside the graph declares; None: the graph says it all.
        warnings: settings in such a file that have no effect, one sentence each.
    """

    name: str
    version: str
    path: Path
    layout: Layout
    declaration: Declaration | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class RefusedFolder:
    """A folder that is meant to be a model and cannot be served; the reason is one line."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True)
class Snapshot:
    """All roots at one moment, by name.

    Attributes:
        models: to be loaded.
        refused: to be reported.
        problems: roots that cannot be read and names that two roots claim, one sentence each.
        warnings: names asked for that are not there, one sentence each.
    """

    models: tuple[ModelFolder, ...] = ()
    refused: tuple[RefusedFolder, ...] = ()
    problems: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()


def scan(roots: Sequence[str | Path], include: Sequence[str] = ()) -> Snapshot:
    """Look through the roots, in order: where two hold the same name, the first serves it.

    Args:
        roots: folders of model folders.
        include: names to look at; empty means all.
    """
    found: dict[str, ModelFolder | RefusedFolder] = {}
    homes: dict[str, Path] = {}
    problems: list[str] = []
    for root in map(Path, roots):
        names, problem = _folder_names(root)
        problems.extend(problem)
        for name in names:
            if include and name not in include:
                continue
            entry = scan_folder(root / name)
            if entry is not None and name in found:
                problems.append(f"model '{name}' is in {homes[name]} and in {root}; the first serves, rename one")
            elif entry is not None:
                found[name], homes[name] = entry, root
    entries = [found[name] for name in sorted(found)]
    return Snapshot(
        models=tuple(entry for entry in entries if isinstance(entry, ModelFolder)),
        refused=tuple(entry for entry in entries if isinstance(entry, RefusedFolder)),
        problems=tuple(problems),
        warnings=tuple(_not_found(include, found, roots)),
    )


def scan_folder(folder: Path) -> ModelFolder | RefusedFolder | None:
    """What one folder is: a model, a model that is refused, or None: nothing to do with models."""
    name = folder.name
    if name in _NO_MODELS:
        return None
    try:
        entries = _visible(folder)
        return _model_folder(folder, entries) if entries else None
    except ModelLoadError as error:
        return RefusedFolder(name, error.message)
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is not UTF-8"
        where = Path(os.fsdecode(error.filename)).name if isinstance(error, OSError) and error.filename else name
        return RefusedFolder(name, f"{where} cannot be read: {reason}")


def _model_folder(folder: Path, entries: frozenset[str]) -> ModelFolder:
    if _NAME.fullmatch(folder.name) is None:
        raise ModelLoadError(
            "the folder's name is no model name; use letters, digits, '_', '.', '-', not '_.' in front"
        )
    if HOOKS_FILE in entries:
        raise ModelLoadError(manifest.HOOKS_REASON)
    if manifest.FILE_NAME in entries:
        return _with_manifest(folder, entries)
    if triton.FILE_NAME not in entries:
        return _by_layout(folder, MODEL_FILE)
    config = triton.parse_config((folder / triton.FILE_NAME).read_text("utf-8"))
    warnings = _unused(triton.FILE_NAME, config.unused)
    return _by_layout(folder, config.model_file, config.versions, config.declaration, warnings)


def _with_manifest(folder: Path, entries: frozenset[str]) -> ModelFolder:
    parsed = manifest.parse_manifest((folder / manifest.FILE_NAME).read_text("utf-8"))
    path = _onnx_file(folder / parsed.executable)
    if path is None:
        raise ModelLoadError(f"{manifest.FILE_NAME}: executable: there is no file {parsed.executable}")
    warnings = _unused(manifest.FILE_NAME, parsed.unused)
    if triton.FILE_NAME in entries:
        warnings += (f"{triton.FILE_NAME} is not used: {manifest.FILE_NAME} takes its place",)
    return ModelFolder(folder.name, "1", path, Layout.MANIFEST, parsed.declaration, warnings)


def _by_layout(
    folder: Path,
    model_file: str,
    allowed: Sequence[int] = (),
    declaration: Declaration | None = None,
    warnings: tuple[str, ...] = (),
) -> ModelFolder:
    plain = _onnx_file(folder / model_file)
    versions = {version: path for version, path in _versions(folder, model_file) if not allowed or version in allowed}
    if plain is not None and versions:
        raise ModelLoadError(f"both {model_file} and version folders with one are there; keep one of the two")
    if plain is not None:
        return ModelFolder(folder.name, "1", plain, Layout.PLAIN, declaration, warnings)
    if not versions:
        numbers = ", ".join(map(str, allowed)) if allowed else "1, 2, ..."
        raise ModelLoadError(f"there is no {model_file}, neither in the folder nor in a version folder ({numbers})")
    highest = max(versions)
    return ModelFolder(folder.name, str(highest), versions[highest], Layout.VERSIONED, declaration, warnings)


def _versions(folder: Path, model_file: str) -> Iterator[tuple[int, Path]]:
    for entry in _visible(folder):
        if _VERSION.fullmatch(entry) is None or int(entry) > _MAX_VERSION:
            continue
        path = _onnx_file(folder / entry / model_file)
        if path is not None:
            yield int(entry), path


def _onnx_file(path: Path) -> Path | None:
    """The file itself, or the one inside a folder of that name, as Triton has it for models with external data."""
    return next((place for place in (path, path / MODEL_FILE) if place.is_file()), None)


def _visible(folder: Path) -> frozenset[str]:
    return frozenset(entry for entry in os.listdir(folder) if not entry.startswith("."))  # noqa: PTH208 - names, not paths


def _folder_names(root: Path) -> tuple[list[str], list[str]]:
    """Names of the folders in a root, sorted, and what is wrong with the root, if anything."""
    try:
        with os.scandir(root) as entries:
            folders = sorted(entry.name for entry in entries if not entry.name.startswith(".") and _is_folder(entry))
        if (root / MODEL_FILE).is_file():
            return folders, [f"model repository {root} holds {MODEL_FILE} itself; name the folder above it"]
    except OSError as error:
        return [], [f"model repository {root} cannot be read: {error.strerror}"]
    return folders, []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    try:
        return entry.is_dir()
    except OSError:  # a link in a ring, or to where we may not look: no reason to give up the whole root
        return False


def _not_found(include: Sequence[str], found: Iterable[str], roots: Sequence[str | Path]) -> Iterator[str]:
    names = set(found)
    for name in include:
        if name not in names:
            yield f"model '{name}' of models_include is not in {', '.join(map(str, roots))}"


def _unused(file: str, keys: Sequence[str]) -> tuple[str, ...]:
    return (
        (f"{file}: {', '.join(keys)} {'has' if len(keys) == 1 else 'have'} no effect in this version",) if keys else ()
    )
