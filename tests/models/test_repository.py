"""What counts as a model on disk, which file of it serves, and what is said about the rest."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reactant_node.models.declaration import Declaration
from reactant_node.models.repository import Layout, ModelFolder, RefusedFolder, Snapshot, scan, scan_folder


def touch(path: Path, text: str = "x") -> Path:
    """A file with its folders."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def names(snapshot: Snapshot) -> list[str]:
    """Of the models that would be loaded."""
    return [model.name for model in snapshot.models]


def refusal(folder: Path) -> str:
    """The reason a folder is refused."""
    found = scan_folder(folder)
    assert isinstance(found, RefusedFolder), found
    assert "\n" not in found.reason
    return found.reason


def test_the_three_layouts_are_found(tmp_path: Path) -> None:
    """Each with its version and file, by name."""
    plain = touch(tmp_path / "c_plain/model.onnx")
    listed = touch(tmp_path / "b.manifest/net/graph.onnx")
    touch(tmp_path / "b.manifest/manifest.yaml", "executable: net/graph.onnx")
    touch(tmp_path / "a-versions/2/model.onnx")
    highest = touch(tmp_path / "a-versions/10/model.onnx")
    assert scan([tmp_path]) == Snapshot(
        (
            ModelFolder("a-versions", "10", highest, Layout.VERSIONED),
            ModelFolder("b.manifest", "1", listed, Layout.MANIFEST, Declaration("manifest.yaml")),
            ModelFolder("c_plain", "1", plain, Layout.PLAIN),
        )
    )


def test_what_is_no_model_is_passed_over(tmp_path: Path) -> None:
    """Hidden folders, plain files, empty folders and what mkfs leaves do not appear at all."""
    touch(tmp_path / "good/model.onnx")
    touch(tmp_path / "README.md")
    touch(tmp_path / ".git/config")
    touch(tmp_path / ".ipynb_checkpoints/model.onnx")
    touch(tmp_path / "lost+found/model.onnx")
    touch(tmp_path / "only_hidden/.keep")
    (tmp_path / "empty").mkdir()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    snapshot = scan([tmp_path])
    assert names(snapshot) == ["good"]
    assert snapshot.refused == ()


def test_lost_and_found_is_not_even_opened(tmp_path: Path) -> None:
    """Only root may read it; a plain file in its place shows that nobody tries."""
    assert scan_folder(touch(tmp_path / "lost+found")) is None
    assert isinstance(scan_folder(touch(tmp_path / "other")), RefusedFolder)


@pytest.mark.parametrize("name", ["with space", "modèle", "a+b", "_.hidden"])
def test_a_name_that_the_wire_could_not_carry_is_refused(tmp_path: Path, name: str) -> None:
    """Letters, digits, '_', '.' and '-' only: the name becomes metric labels and paths."""
    touch(tmp_path / name / "model.onnx")
    assert "no model name" in refusal(tmp_path / name)


def test_a_folder_without_a_model_file_is_refused_with_the_reason(tmp_path: Path) -> None:
    """Whoever put files there expects a model; 0, 01 and words are no versions."""
    for entry in (
        "notes.txt",
        "0/model.onnx",
        "01/model.onnx",
        "abc/model.onnx",
        "3/other.onnx",
        f"{2**63}/model.onnx",
    ):
        touch(tmp_path / "m" / entry)
    assert refusal(tmp_path / "m") == (
        "there is no model.onnx, neither in the folder nor in a version folder (1, 2, ...)"
    )


def test_strays_beside_a_version_do_not_matter(tmp_path: Path) -> None:
    """A version folder without the file is still being copied, or is none."""
    path = touch(tmp_path / "m/2/model.onnx")
    for entry in ("0/model.onnx", "03/model.onnx", "abc/model.onnx", "2/.ipynb_checkpoints/x", "4/model.onnx.part"):
        touch(tmp_path / "m" / entry)
    assert scan_folder(tmp_path / "m") == ModelFolder("m", "2", path, Layout.VERSIONED)


def test_a_folder_named_like_the_file_holds_it(tmp_path: Path) -> None:
    """Triton keeps external data in `1/model.onnx/`."""
    path = touch(tmp_path / "m/1/model.onnx/model.onnx")
    assert scan_folder(tmp_path / "m") == ModelFolder("m", "1", path, Layout.VERSIONED)


def test_two_layouts_in_one_folder_are_refused(tmp_path: Path) -> None:
    """Which of the two is meant cannot be known."""
    touch(tmp_path / "m/model.onnx")
    touch(tmp_path / "m/1/model.onnx")
    assert "keep one" in refusal(tmp_path / "m")


@pytest.mark.parametrize("files", [("model.py", "model.onnx"), ("model.py",)])
def test_hooks_are_refused(tmp_path: Path, files: tuple[str, ...]) -> None:
    """Serving the graph without them would give other answers."""
    for file in files:
        touch(tmp_path / "m" / file)
    assert refusal(tmp_path / "m") == "hooks (model.py, kind: meta) are not supported by this version"


def test_a_config_chooses_version_and_file_and_what_has_no_effect_is_said(tmp_path: Path) -> None:
    """version_policy and default_model_filename are honoured; one warning names the rest."""
    for version in ("1", "2", "3"):
        touch(tmp_path / "m" / version / "net.onnx")
    touch(
        tmp_path / "m/config.pbtxt",
        'default_model_filename: "net.onnx" version_policy { specific { versions: [1, 2] } } instance_group { }',
    )
    found = scan_folder(tmp_path / "m")
    assert isinstance(found, ModelFolder)
    assert (found.version, found.path.name) == ("2", "net.onnx")
    assert found.declaration is not None
    assert found.warnings == ("config.pbtxt: instance_group has no effect in this version",)


def test_a_version_that_the_policy_asks_for_and_is_not_there_is_refused(tmp_path: Path) -> None:
    """Never another one instead."""
    touch(tmp_path / "m/1/model.onnx")
    touch(tmp_path / "m/config.pbtxt", "version_policy { specific { versions: 7 } }")
    assert refusal(tmp_path / "m").endswith("in a version folder (7)")


def test_a_manifest_takes_the_place_of_a_config(tmp_path: Path) -> None:
    """The second file is named as unused."""
    touch(tmp_path / "m/model.onnx")
    touch(tmp_path / "m/manifest.yaml", "input_shapes: []")
    touch(tmp_path / "m/config.pbtxt", "nonsense")
    found = scan_folder(tmp_path / "m")
    assert isinstance(found, ModelFolder)
    assert found.warnings == (
        "manifest.yaml: input_shapes has no effect in this version",
        "config.pbtxt is not used: manifest.yaml takes its place",
    )


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("manifest.yaml", "kind: [", "manifest.yaml: while parsing"),
        ("manifest.yaml", "executable: other.onnx", "manifest.yaml: executable: there is no file other.onnx"),
        ("config.pbtxt", "max_batch: 3", "config.pbtxt: max_batch is no field"),
    ],
)
def test_a_bad_file_beside_the_model_refuses_it_alone(tmp_path: Path, file: str, content: str, reason: str) -> None:
    """The others are served."""
    touch(tmp_path / "bad/model.onnx")
    touch(tmp_path / "bad" / file, content)
    touch(tmp_path / "good/model.onnx")
    snapshot = scan([tmp_path])
    assert names(snapshot) == ["good"]
    assert snapshot.refused[0].reason.startswith(reason)


def test_a_file_that_cannot_be_read_is_a_reason_too(tmp_path: Path) -> None:
    """Neither bytes that are not UTF-8 nor a folder in the file's place end the scan."""
    touch(tmp_path / "latin/model.onnx")
    (tmp_path / "latin/config.pbtxt").write_bytes(b"# caf\xe9")
    touch(tmp_path / "folder/model.onnx")
    (tmp_path / "folder/manifest.yaml").mkdir()
    assert refusal(tmp_path / "latin") == "latin cannot be read: it is not UTF-8"
    assert refusal(tmp_path / "folder") == "manifest.yaml cannot be read: Is a directory"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_folder_that_may_not_be_read_is_refused(tmp_path: Path) -> None:
    """Its mode is said, the others are served."""
    folder = touch(tmp_path / "m/model.onnx").parent
    folder.chmod(0)
    try:
        assert refusal(folder) == "m cannot be read: Permission denied"
    finally:
        folder.chmod(0o700)


def test_include_limits_the_models_and_what_is_not_there_is_a_warning(tmp_path: Path) -> None:
    """A name that is missing never keeps the others from being served."""
    for name in ("a", "b", "c"):
        touch(tmp_path / name / "model.onnx")
    snapshot = scan([tmp_path], ["c", "a", "q"])
    assert names(snapshot) == ["a", "c"]
    assert snapshot.warnings == (f"model 'q' of models_include is not in {tmp_path}",)


def test_of_two_roots_with_one_name_the_first_serves_it(tmp_path: Path) -> None:
    """One problem line names both."""
    first = touch(tmp_path / "one/m/model.onnx")
    touch(tmp_path / "two/m/model.onnx")
    touch(tmp_path / "two/other/model.onnx")
    snapshot = scan([tmp_path / "one", tmp_path / "two"])
    assert names(snapshot) == ["m", "other"]
    assert snapshot.models[0].path == first
    assert snapshot.problems == (
        f"model 'm' is in {tmp_path / 'one'} and in {tmp_path / 'two'}; the first serves, rename one",
    )


def test_a_root_that_cannot_be_read_is_a_problem_and_the_others_are_served(tmp_path: Path) -> None:
    """Missing, or not a folder."""
    touch(tmp_path / "good/m/model.onnx")
    file = touch(tmp_path / "file")
    snapshot = scan([tmp_path / "missing", file, tmp_path / "good"])
    assert names(snapshot) == ["m"]
    assert snapshot.problems == (
        f"model repository {tmp_path / 'missing'} cannot be read: No such file or directory",
        f"model repository {file} cannot be read: Not a directory",
    )


def test_a_root_that_is_itself_a_model_says_so(tmp_path: Path) -> None:
    """The usual mistake with --models."""
    touch(tmp_path / "m/model.onnx")
    assert scan([tmp_path / "m"]).problems == (
        f"model repository {tmp_path / 'm'} holds model.onnx itself; name the folder above it",
    )


def test_links_to_folders_and_files_are_followed(tmp_path: Path) -> None:
    """A model folder may be a link, and so may its file."""
    touch(tmp_path / "store/blob")
    touch(tmp_path / "elsewhere/linked/model.onnx")
    root = tmp_path / "root"
    (root / "file").mkdir(parents=True)
    (root / "file/model.onnx").symlink_to(tmp_path / "store/blob")
    (root / "folder").symlink_to(tmp_path / "elsewhere/linked")
    assert names(scan([root])) == ["file", "folder"]
