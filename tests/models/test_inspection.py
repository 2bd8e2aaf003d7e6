"""What `inspect` tells of a repository or of one model."""

from __future__ import annotations

from pathlib import Path

from reactant_node.errors import ModelLoadError
from reactant_node.models.inspection import Examination, inspect_path, inspect_repository, render
from reactant_node.models.repository import ModelFolder
from reactant_node.models.signature import BatchAxis, ModelSignature, TensorSpec

SIGNATURE = ModelSignature(
    (TensorSpec("image", "FP32", ("n", 3, None)), TensorSpec("k", "INT64", ())), (TensorSpec("y", "BYTES", None),)
)


def examine(folder: ModelFolder) -> Examination:
    """Loads anything but `bad`."""
    if folder.name == "bad":
        raise ModelLoadError("no such operator")
    warnings = (*folder.warnings, "look here")
    return Examination(SIGNATURE, BatchAxis(0, "marked", declared=True, max_rows=8), "CPUExecutionProvider", warnings)


def repository(root: Path) -> Path:
    """One model of each fate."""
    for name, version in (("good", "2/"), ("bad", "")):
        path = root / name / version / "model.onnx"
        path.parent.mkdir(parents=True)
        path.write_bytes(bytes(1500))
    (root / "good/2/weights.bin").write_bytes(bytes(1000))
    (root / "strange").mkdir()
    (root / "strange/notes.txt").write_text("")
    return root


def test_every_folder_gets_one_paragraph_with_aligned_tensors(tmp_path: Path) -> None:
    """Served ones with signature and batching, refused ones with the reason."""
    reports, snapshot = inspect_repository([repository(tmp_path)], ["bad", "good", "strange", "gone"], examine)
    assert render(reports, snapshot) == (
        f"model 'gone' of models_include is not in {tmp_path}\n"
        "\n"
        "bad version 1, 1.5 kB, plain layout\n"
        "  REFUSED    no such operator\n"
        "\n"
        "good version 2, 2.5 kB, versioned layout, CPUExecutionProvider\n"
        "  input      image  FP32   [n,3,?]\n"
        "  input      k      INT64  []\n"
        "  output     y      BYTES  any shape\n"
        "  batching   joined along axis 0, at most 8 rows a request: marked\n"
        "  warning    look here\n"
        "\n"
        "strange\n"
        "  REFUSED    there is no model.onnx, neither in the folder nor in a version folder (1, 2, ...)\n"
    )


def test_a_path_may_be_one_model_or_a_repository(tmp_path: Path) -> None:
    """The folder itself decides."""
    repository(tmp_path)
    assert [report.name for report in inspect_path(tmp_path / "good", examine)[0]] == ["good"]
    assert [report.name for report in inspect_path(tmp_path, examine)[0]] == ["bad", "good", "strange"]


def test_an_empty_or_missing_repository_says_so(tmp_path: Path) -> None:
    """Never an empty answer."""
    assert render(*inspect_path(tmp_path, examine)) == "no model found\n"
    missing = tmp_path / "missing"
    assert render(*inspect_path(missing, examine)) == (
        f"model repository {missing} cannot be read: No such file or directory\n"
    )
