"""The built file: what is in it, and that all of it works without anything else."""

from __future__ import annotations

import re
import zipfile
from pathlib import Path

import numpy as np
import pytest

import build_zipapp
import reactant_node
from tests.support.tiny_zipapp import start_zipapp

pytestmark = pytest.mark.artifact

MOST_BYTES = 60_000_000

IMPORT_ALL = """
import sys, google.protobuf, grpc.aio, numpy, onnxruntime, prometheus_client, pynvml, yaml
modules = google.protobuf, grpc, numpy, onnxruntime, prometheus_client, pynvml, yaml
print(*(module.__file__ for module in modules), sep="\\n")
"""

READ_A_DIGIT = """
import sys, importlib.resources, numpy, onnxruntime
model = importlib.resources.files("reactant_node") / "demo" / "digits" / "model.onnx"
session = onnxruntime.InferenceSession(model.read_bytes(), providers=["CPUExecutionProvider"])
image = numpy.array(sys.argv[1:], numpy.float32).reshape(1, 8, 8)
print(session.run(["digit"], {"image": image})[0][0])
"""


def test_it_is_small(zipapp: Path) -> None:
    """The CPU flavor is copied to a host in seconds."""
    assert zipapp.stat().st_size <= MOST_BYTES


def test_version_says_what_is_inside(zipapp: Path, shiv_root: Path, tmp_path: Path) -> None:
    """The command answers with our version, from the file alone."""
    ended = start_zipapp("-I", zipapp, "version", home=tmp_path, SHIV_ROOT=str(shiv_root))
    assert ended.returncode == 0, ended.stderr
    assert reactant_node.__version__ in ended.stdout


def test_every_dependency_is_the_one_inside(zipapp: Path, shiv_root: Path, tmp_path: Path) -> None:
    """Not one comes from PYTHONPATH, packages that would win over a namespace folder included."""
    for name in ("google", "numpy", "yaml"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text("raise ImportError('not ours')")
    more = {"SHIV_ROOT": str(shiv_root), "SHIV_INTERPRETER": "1", "PYTHONPATH": str(tmp_path)}
    ended = start_zipapp(zipapp, "-c", IMPORT_ALL, home=tmp_path, **more)
    assert ended.returncode == 0, ended.stderr
    assert all(path.startswith(f"{shiv_root}/reactant-node-cpu-") for path in ended.stdout.split())


def test_onnx_runtime_runs_a_bundled_model(zipapp: Path, shiv_root: Path, tmp_path: Path) -> None:
    """What was left out of ONNX Runtime and numpy is not needed to run a model."""
    three = np.loadtxt(build_zipapp.CHECKOUT / "config" / "demo" / "digit.txt", dtype=str).ravel()
    more = {"SHIV_ROOT": str(shiv_root), "SHIV_INTERPRETER": "1"}
    ended = start_zipapp(zipapp, "-c", READ_A_DIGIT, *three, home=tmp_path, **more)
    assert (ended.stdout, ended.returncode) == ("3\n", 0), ended.stderr


def test_nothing_is_written_to_the_home_folder(zipapp: Path, shiv_root: Path, tmp_path: Path) -> None:
    """ONNX Runtime's telemetry, which keeps an identifier and a queue of events there, is off."""
    more = {"SHIV_ROOT": str(shiv_root), "SHIV_INTERPRETER": "1"}
    ended = start_zipapp(zipapp, "-c", "import reactant_node.runtime.ort", home=tmp_path, **more)
    assert ended.returncode == 0, ended.stderr
    assert list(tmp_path.iterdir()) == []


def test_nothing_in_it_names_where_it_was_built(zipapp: Path) -> None:
    """No text inside holds a path of the machine that built it, nor a file that is for builders only."""
    checkout = str(build_zipapp.CHECKOUT).encode()
    with zipfile.ZipFile(zipapp) as archive:
        names = archive.namelist()
        texts = {name: archive.read(name) for name in names if not re.search(r"\.so(\.|$)|\.onnx$", name)}
    assert [name for name, text in texts.items() if checkout in text] == []
    assert [name for name in names if name.endswith((".pyi", ".pyc", ".pxd", ".a", ".h", "/RECORD"))] == []
