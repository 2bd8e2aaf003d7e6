"""What the parent can know of ONNX Runtime without importing it."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
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


def test_a_package_that_is_not_there_has_no_version(monkeypatch: pytest.MonkeyPatch) -> None:
    """Metadata that is missing is not an error: some images install without it."""

    def absent(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", absent)
    assert find_installation().packages == {}
