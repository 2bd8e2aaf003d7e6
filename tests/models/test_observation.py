"""What of a model folder makes a change, and what does not; what a poll says of roots and links."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from reactant_node.models.changes import FolderMark
from reactant_node.models.observation import glance, observe, observe_folder


def touch(path: Path, text: str = "x") -> Path:
    """A file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def mark(root: Path, name: str = "m") -> FolderMark:
    """Of a folder that is there."""
    found = observe_folder(str(root), name)
    assert found is not None
    return found


def rewrite_in_place(path: Path) -> None:
    """Other bytes, with size and modification time as they were."""
    before = path.stat()
    path.write_bytes(bytes(before.st_size))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "the model": lambda folder: touch(folder / "model.onnx", "longer"),
    "the model, with size and time as before": lambda folder: rewrite_in_place(folder / "model.onnx"),
    "the model, by rename": lambda folder: touch(folder.parent / "new").replace(folder / "model.onnx"),
    "external data": lambda folder: touch(folder / "weights.bin", "longer"),
    "external data in a folder": lambda folder: touch(folder / "data/part0", "longer"),
    "new external data": lambda folder: touch(folder / "weights2.bin"),
    "external data is gone": lambda folder: (folder / "weights.bin").unlink(),
    "a touch": lambda folder: os.utime(folder / "weights.bin", ns=(1, 1)),
    "a manifest": lambda folder: touch(folder / "manifest.yaml", "format_version: 2"),
    "a config": lambda folder: touch(folder / "config.pbtxt", "max_batch_size: 4"),
    "a version folder": lambda folder: touch(folder / "2/model.onnx"),
    "hooks": lambda folder: touch(folder / "model.py"),
}

NO_CHANGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda folder: folder,
    "a note": lambda folder: touch(folder / "README.md"),
    "a log": lambda folder: touch(folder / "train.LOG"),
    "a hidden file": lambda folder: touch(folder / ".model.onnx.x7Ga"),
    "a hidden folder": lambda folder: touch(folder / ".ipynb_checkpoints/model.onnx"),
    "a look": lambda folder: (folder / "model.onnx").read_bytes(),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_decides_what_is_served_is_under_the_mark(tmp_path: Path, change: Callable[[Path], object]) -> None:
    """Each of these is a change."""
    folder = touch(tmp_path / "m/model.onnx").parent
    touch(folder / "weights.bin")
    touch(folder / "data/part0")
    before = mark(tmp_path)
    change(folder)
    assert mark(tmp_path) != before


@pytest.mark.parametrize("change", NO_CHANGES.values(), ids=NO_CHANGES)
def test_what_changes_nothing_is_no_change(tmp_path: Path, change: Callable[[Path], object]) -> None:
    """Notes, hidden files and reading leave the mark as it is."""
    folder = touch(tmp_path / "m/model.onnx").parent
    before = mark(tmp_path)
    change(folder)
    assert mark(tmp_path) == before


def test_of_version_folders_the_one_that_serves_counts(tmp_path: Path) -> None:
    """A lower version may come and go; a higher one is a change, and so is the serving one's removal."""
    touch(tmp_path / "m/2/model.onnx")
    before = mark(tmp_path)
    touch(tmp_path / "m/1/model.onnx")
    assert mark(tmp_path) == before
    touch(tmp_path / "m/3/model.onnx")
    higher = mark(tmp_path)
    assert higher != before
    shutil.rmtree(tmp_path / "m/1")
    assert mark(tmp_path) == higher
    shutil.rmtree(tmp_path / "m/3")
    assert mark(tmp_path) == before


def test_any_file_may_be_the_remedy_for_a_folder_that_is_refused(tmp_path: Path) -> None:
    """Its mark covers them all, and why it is refused."""
    touch(tmp_path / "m/weights.bin")
    before = mark(tmp_path)
    touch(tmp_path / "m/NOTES.txt")
    with_note = mark(tmp_path)
    assert with_note != before
    touch(tmp_path / "m/model.onnx")
    assert mark(tmp_path) not in (before, with_note)


def test_a_renamed_folder_has_the_mark_it_had(tmp_path: Path) -> None:
    """A copy has not."""
    folder = touch(tmp_path / "m/model.onnx").parent
    before = mark(tmp_path)
    folder.rename(tmp_path / "n")
    assert mark(tmp_path, "n") == before
    shutil.copytree(tmp_path / "n", tmp_path / "m")
    assert mark(tmp_path) != before


def test_links_that_are_swapped_are_a_change(tmp_path: Path) -> None:
    """As Kubernetes updates a ConfigMap: `..data` comes to lead elsewhere, the links to it stay."""
    root = tmp_path / "models"
    for version in ("..old", "..new"):
        touch(root / "m" / version / "model.onnx")
    (root / "m/..data").symlink_to("..old")
    (root / "m/model.onnx").symlink_to("..data/model.onnx")
    before, seen = mark(root), glance([str(root)])
    (root / "m/..data_tmp").symlink_to("..new")
    (root / "m/..data_tmp").rename(root / "m/..data")
    assert mark(root) != before
    assert glance([str(root)]) != seen


def test_a_link_to_a_folder_is_that_folder(tmp_path: Path) -> None:
    """Its files and its identity."""
    touch(tmp_path / "store/v1/model.onnx")
    (tmp_path / "models").mkdir()
    (tmp_path / "models/m").symlink_to(tmp_path / "store/v1")
    assert mark(tmp_path / "models") == mark(tmp_path / "store", "v1")


def test_a_root_is_seen_with_its_folders_and_what_leads_nowhere(tmp_path: Path) -> None:
    """Files, hidden entries, empty folders and links to files are none of either."""
    touch(tmp_path / "m/model.onnx")
    touch(tmp_path / "README")
    touch(tmp_path / ".git/config")
    touch(tmp_path / "lost+found/x")
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").symlink_to(tmp_path / "README")
    (tmp_path / "gone").symlink_to(tmp_path / "nowhere")
    (tmp_path / "ring").symlink_to("ring")
    (view,) = observe([str(tmp_path)])
    assert list(view.folders) == ["m"]
    assert view.unreachable == {"gone", "ring"}
    assert view.identity is not None
    (narrow,) = observe([str(tmp_path)], ["gone"])
    assert (dict(narrow.folders), set(narrow.unreachable)) == ({}, {"gone"})


def test_a_root_that_cannot_be_read_says_why(tmp_path: Path) -> None:
    """It has no identity then."""
    (view,) = observe([str(tmp_path / "nowhere")])
    assert (view.identity, view.problem) == (
        None,
        f"model repository {tmp_path / 'nowhere'} cannot be read: No such file or directory",
    )


def test_a_glance_sees_folders_come_go_and_change_and_nothing_else(tmp_path: Path) -> None:
    """It looks at folders, not into files."""
    root = tmp_path / "models"
    model = touch(root / "m/model.onnx")
    touch(tmp_path / "ready/model.onnx")
    seen = glance([str(root)])
    assert glance([str(root)]) == seen
    model.write_text("in place")
    assert glance([str(root)]) == seen
    (tmp_path / "ready").rename(root / "n")
    with_n = glance([str(root)])
    assert with_n != seen
    touch(root / "m/new").replace(model)
    assert glance([str(root)]) != with_n
    root.rename(tmp_path / "away")
    assert glance([str(root)]) != glance([str(tmp_path / "away")])
