"""manifest.yaml, the reference's description of a model, for a model that is an ONNX graph.

    format_version: 2
    executable: model.onnx            # the default
    executable_inputs:
      - {name: x, dtype: f32, shape: nchw, dims: {c: 3, h: 224, w: -1}}
    executable_outputs:
      - {name: y, dtype: f32, shape: nk, dims: {k: 1000}}

`shape` has one letter per axis, row-major; `n` and `b` mark the batch axis. `dims` gives the other letters' sizes,
or is a list with one entry per axis; -1 is a variable extent. The graph says everything that is left out, a letter's
size included. `input_shapes` and `batching.compiled_batch_sizes` list what the reference compiles for; an ONNX
graph takes any size on a symbolic axis, so they have no effect yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml

from reactant_node.errors import ModelLoadError
from reactant_node.models.declaration import Declaration, DeclaredTensor
from reactant_node.models.signature import Dimension

FILE_NAME = "manifest.yaml"

_HONOURED = ("format_version", "name", "kind", "executable", "executable_inputs", "executable_outputs", "provenance")
"""`name` is read over: the folder names the model."""

_UNUSED = ("batching", "input_shapes")
_HOOKS = ("client_inputs", "client_outputs", "meta")
_TENSOR_KEYS = ("name", "dtype", "shape", "dims")
_BATCH_LETTERS = ("n", "b")
_FORMAT_VERSIONS = ("2.0", "2")

_DTYPES = {
    "f16": "FP16",
    "f32": "FP32",
    "f64": "FP64",
    "bf16": "BF16",
    "bool": "BOOL",
    "string": "BYTES",
    **{f"i{bits}": f"INT{bits}" for bits in (8, 16, 32, 64)},
    **{f"u{bits}": f"UINT{bits}" for bits in (8, 16, 32, 64)},
}

HOOKS_REASON = "hooks (model.py, kind: meta) are not supported by this version"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What is honoured of one manifest.yaml.

    Attributes:
        declaration: to be held against the graph.
        executable: the model's file, relative to the model folder and inside it.
        unused: keys that are set and have no effect.
    """

    declaration: Declaration
    executable: str
    unused: tuple[str, ...]


def parse_manifest(text: str) -> Manifest:
    """Read a manifest.

    Raises:
        ModelLoadError: malformed, or asks for what is not served; names the key, what was found and what is accepted.
    """
    keys = _load(text)
    _check_keys(keys)
    return Manifest(
        Declaration(
            source=FILE_NAME,
            inputs=_tensors(keys, "executable_inputs"),
            outputs=_tensors(keys, "executable_outputs"),
        ),
        _executable(keys.get("executable", "model.onnx")),
        tuple(key for key in keys if key in _UNUSED),
    )


def _load(text: str) -> Mapping[str, Any]:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise ModelLoadError(f"{FILE_NAME}: {' '.join(str(error).split())}") from error
    if document is None:
        return {}
    return _mapping(document, FILE_NAME)


def _check_keys(keys: Mapping[str, Any]) -> None:
    if keys.get("kind", "model") == "meta" or any(key in keys for key in _HOOKS):
        raise ModelLoadError(f"{FILE_NAME}: {HOOKS_REASON}")
    _refuse_unknown("", keys, (*_HONOURED, *_UNUSED))
    if keys.get("kind", "model") != "model":
        raise ModelLoadError(f"{FILE_NAME}: kind: got {keys['kind']!r}; use model")
    version = str(keys.get("format_version", "2"))
    if version not in _FORMAT_VERSIONS:
        raise ModelLoadError(f"{FILE_NAME}: format_version: got {version!r}; use 2")
    _check_batch_sizes(keys.get("batching", {}))


def _check_batch_sizes(batching: object) -> None:
    keys = _mapping(batching, "batching")
    _refuse_unknown("batching.", keys, ("compiled_batch_sizes",))
    sizes = keys.get("compiled_batch_sizes", [])
    if not isinstance(sizes, list) or not all(_is_size(size) and size > 0 for size in sizes):
        raise ModelLoadError(
            f"{FILE_NAME}: batching.compiled_batch_sizes: got {sizes!r}; use a list of whole numbers from 1"
        )


def _executable(found: object) -> str:
    path = PurePosixPath(str(found))
    if not isinstance(found, str) or not path.name or path.is_absolute() or ".." in path.parts:
        raise ModelLoadError(f"{FILE_NAME}: executable: got {found!r}; use a file inside the model folder")
    return str(path)


def _tensors(keys: Mapping[str, Any], key: str) -> tuple[DeclaredTensor, ...]:
    found = keys.get(key, [])
    if not isinstance(found, list):
        raise ModelLoadError(f"{FILE_NAME}: {key}: got {found!r}; use a list of tensors")
    return tuple(_tensor(_mapping(item, f"{key}[{index}]"), f"{key}[{index}]") for index, item in enumerate(found))


def _tensor(keys: Mapping[str, Any], where: str) -> DeclaredTensor:
    _refuse_unknown(f"{where}.", keys, _TENSOR_KEYS)
    name = keys.get("name")
    if not isinstance(name, str) or not name:
        raise ModelLoadError(f"{FILE_NAME}: {where}.name: got {name!r}; use the graph's name")
    letters = keys.get("shape")
    if letters is None:
        return DeclaredTensor(name, _datatype(keys.get("dtype"), where))
    batch_axis = _batch_axis(letters, where)
    shape = _shape(letters, keys.get("dims", {}), batch_axis, where)
    return DeclaredTensor(name, _datatype(keys.get("dtype"), where), shape, batch_axis)


def _datatype(found: object, where: str) -> str | None:
    if found is None:
        return None
    if not isinstance(found, str) or found not in _DTYPES:
        raise ModelLoadError(f"{FILE_NAME}: {where}.dtype: got {found!r}; use {', '.join(_DTYPES)}")
    return _DTYPES[found]


def _batch_axis(letters: object, where: str) -> int | None:
    if not isinstance(letters, str) or not all(letter.isalpha() for letter in letters):
        raise ModelLoadError(f"{FILE_NAME}: {where}.shape: got {letters!r}; use one letter per axis, e.g. nchw")
    axes = [axis for axis, letter in enumerate(letters) if letter in _BATCH_LETTERS]
    if len(axes) > 1:
        raise ModelLoadError(f"{FILE_NAME}: {where}.shape: got {letters!r}; mark one batch axis (n or b) at most")
    return axes[0] if axes else None


def _shape(letters: str, dims: object, batch_axis: int | None, where: str) -> tuple[Dimension, ...]:
    sizes = _sizes(letters, dims, f"{where}.dims")
    if not all(size in letters if isinstance(size, str) else _is_size(size) and size >= -1 for size in sizes):
        raise ModelLoadError(f"{FILE_NAME}: {where}.dims: got {dims!r}; use sizes, or -1 for a variable one")
    return tuple(None if axis == batch_axis or size == -1 else size for axis, size in enumerate(sizes))


def _sizes(letters: str, dims: object, where: str) -> Sequence[Any]:
    if isinstance(dims, list):
        if len(dims) != len(letters):
            raise ModelLoadError(f"{FILE_NAME}: {where}: got {len(dims)} sizes; use one per letter of {letters!r}")
        return dims
    by_letter = _mapping(dims, where)
    _refuse_unknown(f"{where}.", by_letter, tuple(letters))
    return [by_letter.get(letter, letter) for letter in letters]


def _is_size(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _mapping(value: object, where: str) -> Mapping[str, Any]:
    if not isinstance(value, dict) or not all(isinstance(key, str) for key in value):
        raise ModelLoadError(f"{FILE_NAME}: {where}: got {value!r}; use keys and values")
    return value


def _refuse_unknown(where: str, keys: Mapping[str, Any], accepted: Sequence[str]) -> None:
    for key in keys:
        if key not in accepted:
            raise ModelLoadError(f"{FILE_NAME}: {where}{key}: unknown key; use {', '.join(accepted) or 'none'}")
