"""What the parent can know of ONNX Runtime without importing it."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import onnxruntime
import pytest

from reactant_node.runtime import availability
from reactant_node.runtime.availability import Installation, find_installation, missing_cuda_library, missing_package

HAS_CUDA = "CUDAExecutionProvider" in onnxruntime.get_available_providers()
CPU = Installation({"onnxruntime": "1"}, Path("/here"), has_cuda_provider=False)
CUDA = Installation({"onnxruntime-gpu": "1"}, Path("/here"), has_cuda_provider=True)


def test_what_is_installed_is_found_without_importing_it() -> None:
    """Neither ONNX Runtime nor numpy is loaded by asking."""
    question = (
        "import sys; from reactant_node.runtime import availability as a; a.find_installation();"
        "print([m for m in ('onnxruntime', 'numpy') if m in sys.modules])"
    )
    answer = subprocess.run([sys.executable, "-c", question], check=True, capture_output=True, text=True, timeout=60)
    assert answer.stdout == "[]\n"
    found = find_installation()
    assert found.folder == Path(onnxruntime.__file__).parent
    assert found.has_cuda_provider is HAS_CUDA
    assert list(found.packages.values()) == [onnxruntime.__version__]


@pytest.mark.parametrize(
    ("installation", "cuda", "sentence"),
    [
        (CPU, False, None),
        (CUDA, False, None),
        (CUDA, True, None),
        (CPU, True, "has no CUDA provider: put onnxruntime-gpu in place of onnxruntime"),
        (Installation({}, None, has_cuda_provider=False), False, "not installed: add onnxruntime ("),
        (Installation({}, None, has_cuda_provider=False), True, "not installed: add onnxruntime-gpu ("),
        (
            Installation({"onnxruntime": "1", "onnxruntime-gpu": "1"}, Path("/here"), has_cuda_provider=True),
            True,
            "both installed and break each other",
        ),
    ],
)
def test_what_is_missing_names_the_package_to_add(
    monkeypatch: pytest.MonkeyPatch, installation: Installation, cuda: bool, sentence: str | None
) -> None:
    """A gateway needs neither, CPU workers either, CUDA workers the one with the provider."""
    monkeypatch.setattr(availability, "find_installation", lambda: installation)
    found = missing_package(cuda=cuda)
    assert found is None if sentence is None else sentence in (found or "")


@pytest.mark.skipif(HAS_CUDA, reason="this ONNX Runtime has a CUDA provider")
def test_the_cuda_check_runs_in_a_process_of_its_own() -> None:
    """Its answer comes back, whatever else it prints."""
    assert (
        missing_cuda_library() == "this ONNX Runtime was built without it; put onnxruntime-gpu in place of onnxruntime"
    )


def test_a_cuda_check_that_dies_is_an_answer_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broken driver may take the process with it."""
    monkeypatch.setattr(availability, "_PROBE", "import os; os.abort()")
    assert missing_cuda_library() == "the check ended with -6: no message"


def place_of(folder: Path, *packages: str) -> Path:
    """A place on the path with the module `onnxruntime`, and the metadata of some packages."""
    (folder / "onnxruntime").mkdir(parents=True)
    (folder / "onnxruntime" / "__init__.py").touch()
    for name in packages:
        metadata = folder / f"{name.replace('-', '_')}-1.0.dist-info"
        metadata.mkdir()
        (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    return folder


def found_on(*places: Path) -> Installation:
    """What is found with these places first on the path, in a process of its own."""
    question = (
        f"import sys; sys.path[:0] = {[str(place) for place in places]!r}\n"
        "from reactant_node.runtime.availability import find_installation; print(repr(find_installation().packages))"
    )
    answer = subprocess.run([sys.executable, "-c", question], check=True, capture_output=True, text=True, timeout=60)
    return Installation(ast.literal_eval(answer.stdout), places[0] / "onnxruntime", has_cuda_provider=False)


def test_only_what_is_imported_counts(tmp_path: Path) -> None:
    """A zipapp brings its own; another ONNX Runtime of the host's Python, behind it on the path, breaks nothing."""
    ours, hosts = place_of(tmp_path / "ours", "onnxruntime-gpu"), place_of(tmp_path / "hosts", "onnxruntime")
    assert found_on(ours, hosts).packages == {"onnxruntime-gpu": "1.0"}


def test_both_in_one_place_are_both_found(tmp_path: Path) -> None:
    """They have overwritten each other's files."""
    both = place_of(tmp_path / "both", "onnxruntime", "onnxruntime-gpu")
    assert found_on(both).packages == {"onnxruntime": "1.0", "onnxruntime-gpu": "1.0"}


def test_a_module_without_metadata_has_no_version(tmp_path: Path) -> None:
    """Metadata that is missing is not an error: some images install without it."""
    assert found_on(place_of(tmp_path / "bare")).packages == {}
