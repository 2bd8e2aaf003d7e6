"""Triton's config.pbtxt: what of it this server honours, and what it says about the rest.

Honoured: `max_batch_size`, `input` and `output` (name, data_type, dims), `version_policy`,
`default_model_filename`, `platform` and `backend` where they mean ONNX Runtime. A field whose absence would change
answers refuses the model; a field that only tunes the server is left unused, in one warning that names it; a field
that does not exist in Triton's schema is a spelling mistake and refuses the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from reactant_node.errors import ModelLoadError
from reactant_node.models.declaration import Declaration, DeclaredTensor
from reactant_node.models.text_proto import Message, Symbol, TextFormatError, Value, parse

FILE_NAME = "config.pbtxt"

_REFUSED = ("ensemble_scheduling", "sequence_batching", "batch_input", "batch_output")
"""Left out, they would change the answers."""

_HONOURED = (
    *("name", "platform", "backend", "max_batch_size", "input", "output"),
    *("version_policy", "default_model_filename"),
)
"""`name` is read over: the folder names the model."""

_UNUSED = (
    *("runtime", "optimization", "dynamic_batching", "instance_group", "cc_model_filenames", "metric_tags"),
    *("parameters", "model_warmup", "model_operations", "model_transaction_policy", "model_repository_agents"),
    *("response_cache", "model_metrics"),
)
"""They tune the server; the answers are the same without them."""

_TENSOR_HONOURED = ("name", "data_type", "dims")
_TENSOR_UNUSED = ("format", "label_filename", "is_shape_tensor", "is_non_linear_format_io")
_PLATFORMS = ("", "onnxruntime_onnx")
_BACKENDS = ("", "onnxruntime")
_NOT_TYPE_NAMES = {"STRING": "BYTES"}


@dataclass(frozen=True, slots=True)
class TritonConfig:
    """What is honoured of one config.pbtxt.

    Attributes:
        declaration: to be held against the graph.
        versions: versions that may serve; empty: any. The highest that exists does.
        model_file: name of the model's file in a version folder.
        unused: fields that are set and have no effect.
    """

    declaration: Declaration
    versions: tuple[int, ...]
    model_file: str
    unused: tuple[str, ...]


def parse_config(text: str) -> TritonConfig:
    """Read a config.pbtxt.

    Raises:
        ModelLoadError: it is malformed, or asks for what is not served; names the field.
    """
    try:
        fields = parse(text)
    except TextFormatError as error:
        raise ModelLoadError(f"{FILE_NAME}: {error}") from error
    _refuse_unknown("", fields, (*_HONOURED, *_UNUSED))
    _refuse_other_backends(fields)
    max_batch_size = _integer(fields, "max_batch_size")
    return TritonConfig(
        Declaration(
            source=FILE_NAME,
            inputs=_tensors(fields, "input", batched=bool(max_batch_size)),
            outputs=_tensors(fields, "output", batched=bool(max_batch_size)),
            batched=None if max_batch_size is None else max_batch_size > 0,
            max_rows=max_batch_size or None,
        ),
        _versions(fields),
        _model_file(fields),
        tuple(name for name in fields if name in _UNUSED),
    )


def _refuse_unknown(where: str, fields: Message, accepted: Sequence[str]) -> None:
    for name in fields:
        if name in accepted:
            continue
        known = name in _REFUSED or where
        reason = "is not supported by this version" if known else "is no field of Triton's model configuration"
        raise ModelLoadError(f"{FILE_NAME}: {where}{name} {reason}; used are {', '.join(accepted)}")


def _refuse_other_backends(fields: Message) -> None:
    for name, accepted in (("platform", _PLATFORMS), ("backend", _BACKENDS)):
        found = _text(fields, name)
        if found not in accepted:
            raise ModelLoadError(f"{FILE_NAME}: {name} is {found!r}; only {accepted[-1]!r} is served")


def _tensors(fields: Message, kind: str, *, batched: bool) -> tuple[DeclaredTensor, ...]:
    return tuple(_tensor(value, kind, batched=batched) for value in fields.get(kind, []))


def _tensor(value: Value, kind: str, *, batched: bool) -> DeclaredTensor:
    if not isinstance(value, dict) or not _text(value, "name"):
        raise ModelLoadError(f"{FILE_NAME}: {kind} has no name; write {kind} {{ name: ... data_type: ... dims: ... }}")
    _refuse_unknown(f"{kind}.", value, (*_TENSOR_HONOURED, *_TENSOR_UNUSED))
    dims = tuple(_extent(extent, kind) for extent in value.get("dims", []))
    shape = (None, *dims) if batched else dims
    return DeclaredTensor(
        name=_text(value, "name"),
        datatype=_datatype(value, kind),
        shape=shape if "dims" in value else None,
        batch_axis=0 if batched else None,
    )


def _extent(value: Value, kind: str) -> int | None:
    if not isinstance(value, int) or value < -1:
        raise ModelLoadError(f"{FILE_NAME}: {kind}.dims: got {value!r}; use a size, or -1 for a variable one")
    return None if value == -1 else value


def _datatype(fields: Message, kind: str) -> str | None:
    found = fields.get("data_type", [Symbol("TYPE_INVALID")])[-1]
    name = str(found)
    if not isinstance(found, Symbol) or not name.startswith("TYPE_"):
        raise ModelLoadError(f"{FILE_NAME}: {kind}.data_type: got {found!r}; use TYPE_FP32, TYPE_INT64, ...")
    name = name.removeprefix("TYPE_")
    return None if name == "INVALID" else _NOT_TYPE_NAMES.get(name, name)


def _versions(fields: Message) -> tuple[int, ...]:
    """`latest` and `all` come to the same here: one version serves, the highest."""
    versions: list[int] = []
    for policy in fields.get("version_policy", []):
        for specific in policy.get("specific", []) if isinstance(policy, dict) else []:
            listed = specific.get("versions", []) if isinstance(specific, dict) else []
            versions.extend(version for version in listed if isinstance(version, int))
    return tuple(versions)


def _model_file(fields: Message) -> str:
    name = _text(fields, "default_model_filename") or "model.onnx"
    if "/" in name or name in (".", ".."):
        raise ModelLoadError(f"{FILE_NAME}: default_model_filename is {name!r}; use a file name without folders")
    return name


def _text(fields: Message, name: str) -> str:
    found = fields.get(name, [""])[-1]
    if not isinstance(found, str):
        raise ModelLoadError(f"{FILE_NAME}: {name}: got {found!r}; use a quoted name")
    return found


def _integer(fields: Message, name: str) -> int | None:
    if name not in fields:
        return None
    found = fields[name][-1]
    if not isinstance(found, int) or found < 0:
        raise ModelLoadError(f"{FILE_NAME}: {name}: got {found!r}; use a whole number from 0")
    return found
