"""From a folder to a model that is served, with what its folder declares."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest

from reactant_node.errors import ModelLoadError
from reactant_node.models.repository import ModelFolder, scan_folder
from reactant_node.models.signature import ModelSignature, TensorSpec
from reactant_node.runtime.fake import FakeModel, FakeRuntime, FakeSession
from reactant_node.runtime.loading import examine_model, load_model
from reactant_node.runtime.ort import OrtRuntime
from reactant_node.tensors import NamedTensor
from tests.support import models


def folder(path: Path, model: onnx.ModelProto, **files: str) -> ModelFolder:
    """A model with files beside it, scanned. `config` is config.pbtxt, `manifest` manifest.yaml."""
    models.write_model(path, model)
    for name, text in files.items():
        (path / {"config": "config.pbtxt", "manifest": "manifest.yaml"}[name]).write_text(text)
    found = scan_folder(path)
    assert isinstance(found, ModelFolder), found
    return found


def test_without_files_the_graph_is_served_and_its_axis_inferred(runtime: OrtRuntime, tmp_path: Path) -> None:
    """And probed."""
    loaded = load_model(runtime, folder(tmp_path, models.add1()))
    assert (loaded.batch_axis.axis, loaded.batch_axis.declared, loaded.warnings) == (0, False, ())


def test_a_config_narrows_what_is_served_and_limits_the_rows(runtime: OrtRuntime, tmp_path: Path) -> None:
    """Metadata and checks follow the session's signature, which is the narrowed one."""
    config = (
        'max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: 16 } '
        'output { name: "y" data_type: TYPE_FP32 dims: 16 } instance_group { }'
    )
    loaded = load_model(runtime, folder(tmp_path, models.ident(), config=config))
    assert loaded.session.signature == ModelSignature(
        (TensorSpec("x", "FP32", ("n", 16)),), (TensorSpec("y", "FP32", ("n", 16)),)
    )
    assert (loaded.batch_axis.axis, loaded.batch_axis.declared, loaded.batch_axis.max_rows) == (0, True, 8)
    assert loaded.warnings == ("config.pbtxt: instance_group has no effect in this version",)
    (output,) = loaded.session.run([NamedTensor("x", "FP32", np.ones((2, 16), np.float32))], ["y"])
    assert output.shape == (2, 16)


@pytest.mark.parametrize("rows", [1, 4])
def test_a_fixed_first_dimension_is_served_as_it_is_and_contradicts_max_batch_size(
    runtime: OrtRuntime, tmp_path: Path, rows: int
) -> None:
    """Without a config, or with max_batch_size 0, unbatched; otherwise refused in one clear line."""
    assert load_model(runtime, folder(tmp_path / "a", models.fixed(rows))).batch_axis.axis is None
    zero = folder(tmp_path / "b", models.fixed(rows), config="max_batch_size: 0")
    assert load_model(runtime, zero).batch_axis.axis is None
    batched = folder(tmp_path / "c", models.fixed(rows), config="max_batch_size: 8")
    with pytest.raises(ModelLoadError, match=f"config.pbtxt: a batch axis .* fixes that of input 'x' at {rows}"):
        load_model(runtime, batched)


def test_dims_that_include_the_batch_dimension_are_refused(runtime: OrtRuntime, tmp_path: Path) -> None:
    """The usual mistake in a config.pbtxt."""
    config = 'max_batch_size: 8 input { name: "x" data_type: TYPE_FP32 dims: [-1, 4] }'
    with pytest.raises(ModelLoadError, match=r"declared \[\?,\?,4\], batch axis included, the graph has \[n,4\]"):
        load_model(runtime, folder(tmp_path, models.add1(), config=config))


def test_a_manifest_that_claims_a_batch_axis_is_not_believed_blindly(runtime: OrtRuntime, tmp_path: Path) -> None:
    """The probe has the last word, and the operator is told."""
    manifest = "executable_inputs: [{name: x, shape: nc}]\nexecutable_outputs: [{name: y, shape: nc}]"
    loaded = load_model(runtime, folder(tmp_path, models.batch_norm_like(), manifest=manifest))
    assert loaded.batch_axis.axis is None
    assert "batching is declared, and off" in loaded.warnings[0]


def test_a_model_that_contradicts_its_folder_is_let_go_of(tmp_path: Path) -> None:
    """A refused model keeps no memory."""
    made: list[FakeSession] = []

    class Watched(FakeRuntime):
        """Remembers its sessions."""

        def load(self, model_path: Path) -> FakeSession:
            made.append(super().load(model_path))
            return made[-1]

    signature = ModelSignature((TensorSpec("x", "FP32", (1,)),), (TensorSpec("y", "FP32", (1,)),))
    runtime = Watched({"m": FakeModel(signature, lambda arrays: {"y": arrays["x"]})})
    with pytest.raises(ModelLoadError):
        load_model(runtime, folder(tmp_path / "m", models.add1(), config="max_batch_size: 2"))
    assert repr(made[0]) == "<FakeSession closed, 0 runs>"
    examine_model(runtime, folder(tmp_path / "m", models.add1(), config="max_batch_size: 0"))
    assert repr(made[1]) == "<FakeSession closed, 0 runs>"


def test_an_examination_is_what_would_be_served(runtime: OrtRuntime, tmp_path: Path) -> None:
    """Signature, axis, provider."""
    found = examine_model(runtime, folder(tmp_path, models.two_out()))
    assert [spec.name for spec in found.signature.outputs] == ["A", "B"]
    assert (found.batch_axis.axis, found.provider) == (0, "CPUExecutionProvider")
