"""What the server makes of each model, for people: the `inspect` command.

The models are really loaded and probed, by a callable that whoever owns a runtime passes in, so that the answer is
the server's and not a second opinion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from reactant_node.errors import ModelLoadError
from reactant_node.models.repository import Layout, ModelFolder, RefusedFolder, Snapshot, scan, scan_folder
from reactant_node.models.signature import BatchAxis, ModelSignature, TensorSpec, describe_shape


@dataclass(frozen=True, slots=True)
class Examination:
    """A model that could be loaded: its signature as served, its batch axis after the probe, the provider it got."""

    signature: ModelSignature
    batch_axis: BatchAxis
    provider: str
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class ModelReport:
    """What became of one folder.

    Attributes:
        name: the model's.
        version: the one that would serve; empty where the folder is refused unread.
        size_bytes: of the model's file and what lies beside it.
        layout: None where the folder is refused unread.
        examination: None where it cannot be served.
        refusal: why not, one line; empty otherwise.
        warnings: one sentence each.
    """

    name: str
    version: str = ""
    size_bytes: int = 0
    layout: Layout | None = None
    examination: Examination | None = None
    refusal: str = ""
    warnings: tuple[str, ...] = ()


def inspect_repository(
    roots: Sequence[str | Path], include: Sequence[str], examine: Callable[[ModelFolder], Examination]
) -> tuple[list[ModelReport], Snapshot]:
    """Load every model of some roots, one after the other.

    Args:
        roots: folders of model folders.
        include: names to look at; empty means all.
        examine: loads a model, lets go of it, and raises ModelLoadError where it cannot be served.

    Returns:
        A report per folder, by name, and the snapshot with its problems and warnings.
    """
    snapshot = scan(roots, include)
    folders: list[ModelFolder | RefusedFolder] = [*snapshot.models, *snapshot.refused]
    return [_report(folder, examine) for folder in sorted(folders, key=lambda folder: folder.name)], snapshot


def inspect_path(path: Path, examine: Callable[[ModelFolder], Examination]) -> tuple[list[ModelReport], Snapshot]:
    """The same for a folder that is a repository, or one model's."""
    folder = scan_folder(path.resolve())
    if isinstance(folder, ModelFolder):
        return [_report(folder, examine)], Snapshot(models=(folder,))
    return inspect_repository([path], (), examine)


def render(reports: Sequence[ModelReport], snapshot: Snapshot) -> str:
    """The reports as text: problems first, then one paragraph per model, its tensors in aligned columns."""
    lines = [*snapshot.problems, *snapshot.warnings]
    if not reports and not lines:
        lines = ["no model found"]
    paragraphs = ["\n".join(lines)] if lines else []
    paragraphs += ["\n".join(_paragraph(report)) for report in reports]
    return "\n\n".join(paragraphs) + "\n"


def _report(folder: ModelFolder | RefusedFolder, examine: Callable[[ModelFolder], Examination]) -> ModelReport:
    if isinstance(folder, RefusedFolder):
        return ModelReport(folder.name, refusal=folder.reason)
    size = _size_bytes(folder.path.parent)
    try:
        found = examine(folder)
    except ModelLoadError as error:
        return ModelReport(folder.name, folder.version, size, folder.layout, None, error.message, folder.warnings)
    return ModelReport(folder.name, folder.version, size, folder.layout, found, "", found.warnings)


def _size_bytes(folder: Path) -> int:
    """Files that vanish meanwhile count nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.stat().st_size if path.is_file() else 0
        except OSError:
            continue
    return total


def _paragraph(report: ModelReport) -> Iterator[str]:
    version = f" version {report.version}" if report.version else ""
    size = f", {_human_size(report.size_bytes)}" if report.layout else ""
    layout = f", {report.layout} layout" if report.layout else ""
    found = report.examination
    yield f"{report.name}{version}{size}{layout}" + (f", {found.provider}" if found else "")
    if found is None:
        yield f"  REFUSED    {report.refusal}"
    else:
        yield from _rows(
            [("input", spec) for spec in found.signature.inputs]
            + [("output", spec) for spec in found.signature.outputs]
        )
        yield f"  batching   {_batching(found.batch_axis)}"
    for warning in report.warnings:
        yield f"  warning    {warning}"


def _rows(tensors: Sequence[tuple[str, TensorSpec]]) -> Iterator[str]:
    names = max((len(spec.name) for _, spec in tensors), default=0)
    types = max((len(spec.datatype) for _, spec in tensors), default=0)
    for kind, spec in tensors:
        yield f"  {kind:<9}  {spec.name:<{names}}  {spec.datatype:<{types}}  {describe_shape(spec.shape)}"


def _batching(batch_axis: BatchAxis) -> str:
    if batch_axis.axis is None:
        return f"request by request: {batch_axis.reason}"
    limit = f", at most {batch_axis.max_rows} rows a request" if batch_axis.max_rows else ""
    return f"joined along axis {batch_axis.axis}{limit}: {batch_axis.reason}"


def _human_size(size_bytes: int) -> str:
    size = float(size_bytes)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":  # noqa: PLR2004 - decimal units, as in disk sizes
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1000
    raise AssertionError("unreachable")
