"""ModelInfer's messages: from a request's bytes to named tensors, and from named tensors to a reply's buffers.

Tensor data are kept out of protobuf's hands both ways, since parsing and serializing copy every byte of them. A
request's raw entries are found by walking the message (`peek.py`) and read in place; the parser gets what is left,
some hundred bytes. A reply's head is serialized without raw entries; these follow as buffers of their own, each
behind the tag and length that make it a field. Fields may come in any order in protobuf, so both are plain messages.

What is refused here is what no model could accept: whether inputs fit a model is for whoever knows the model.
Shared-memory regions and classification are extensions that this server does not have; asking for them is answered
UNIMPLEMENTED, since to go on without them would be to answer another question.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from google.protobuf.message import DecodeError

from reactant_node.errors import InvalidArgument, NodeError, ResourceExhausted, Unimplemented
from reactant_node.kserve import elements
from reactant_node.kserve.pb import grpc_predict_v2_pb2 as pb
from reactant_node.kserve.peek import delimited_fields
from reactant_node.tensors import InferReply, InferRequest, NamedTensor

TIMEOUT_PARAMETER = "reactant_timeout_ns"
"""Request parameter: what is left of the caller's time, in nanoseconds, when it sends. Zero or less: no limit."""

PROTOBUF_LIMIT_BYTES = 2**31 - 1
"""No protobuf message may be larger, whatever the transport allows."""

_RAW_INPUT = pb.ModelInferRequest.RAW_INPUT_CONTENTS_FIELD_NUMBER
_RAW_OUTPUT = pb.ModelInferResponse.RAW_OUTPUT_CONTENTS_FIELD_NUMBER
_LENGTH_DELIMITED = 2
_MAX_NS = 2**63 - 1

_REGION_PARAMETERS = ("shared_memory_region", "shared_memory_byte_size", "shared_memory_offset")


def decode_infer(message: bytes, *, now_ns: int, deadline_ns: int | None = None) -> InferRequest:
    """A ModelInferRequest as named tensors, checked as far as that is possible without the model.

    Args:
        message: the serialized request. Numeric tensors of the result are read-only views of it where possible.
        now_ns: monotonic time at which the message arrived; the request's own time limit counts from there.
        deadline_ns: the transport's deadline for the call, on the same clock; the earlier of the two holds.

    Raises:
        InvalidArgument: the message is malformed, or what it says does not add up; names model and input.
        Unimplemented: it asks for an extension that is not served; names the parameter.
    """
    request, raws = _split(message)
    with _Blaming("model", request.model_name):
        _refuse_duplicates("input", (tensor.name for tensor in request.inputs))
        _refuse_duplicates("output", (tensor.name for tensor in request.outputs))
        return InferRequest(
            model=request.model_name,
            version=request.model_version,
            id=request.id,
            inputs=_decode_inputs(request.inputs, raws),
            outputs=tuple(_output_name(output) for output in request.outputs),
            deadline_ns=_earliest(deadline_ns, _own_deadline(request.parameters, now_ns)),
        )


def encode_reply(reply: InferReply, *, limit_bytes: int = PROTOBUF_LIMIT_BYTES) -> list[bytes | memoryview]:
    """A ModelInferResponse as buffers to be sent one after the other; numeric outputs are not copied.

    Args:
        reply: every output is sent raw, in its order.
        limit_bytes: the largest message the caller may send.

    Raises:
        ResourceExhausted: the reply is over the limit, or over protobuf's own; found before anything is joined.
        Internal: a string of the result cannot be written as UTF-8.
    """
    with _Blaming("model", reply.model):
        head = _reply_head(reply)
        payloads = [_output_pieces(output) for output in reply.outputs]
        fields = [(_raw_output_tag(payload), payload) for payload in payloads]
        total = len(head) + sum(len(tag) + _total(payload) for tag, payload in fields)
        _check_limit(total, limit_bytes)
        buffers: list[bytes | memoryview] = [head]
        for tag, payload in fields:
            buffers += (tag, payload[0] if len(payload) == 1 else b"".join(payload))
        return buffers


def _split(message: bytes) -> tuple[pb.ModelInferRequest, list[memoryview]]:
    """The request without its raw entries, and these as views of the message."""
    view = memoryview(message)
    raws: list[memoryview] = []
    rest: list[memoryview] = []
    kept = 0
    for number, begin, value, end in delimited_fields(message):
        if number == _RAW_INPUT:
            raws.append(view[value:end])
            rest.append(view[kept:begin])
            kept = end
    rest.append(view[kept:])
    try:
        return pb.ModelInferRequest.FromString(b"".join(rest)), raws
    except DecodeError as error:
        raise InvalidArgument(
            f"malformed protobuf message: these {len(message)} bytes are no ModelInferRequest"
        ) from error


def _decode_inputs(
    inputs: Sequence[pb.ModelInferRequest.InferInputTensor], raws: Sequence[memoryview]
) -> tuple[NamedTensor, ...]:
    for tensor in inputs:
        with _Blaming("input", tensor.name):
            _refuse_region(tensor.parameters)
            if raws and tensor.contents.ListFields():
                raise InvalidArgument(
                    "typed contents beside raw_input_contents; send all inputs the one way or the other"
                )
    if not raws:
        return tuple(_decode_input(tensor, None) for tensor in inputs)
    if len(raws) != len(inputs):
        unfed = f": input {inputs[len(raws)].name!r} has no data" if len(raws) < len(inputs) else ""
        raise InvalidArgument(f"{len(raws)} raw_input_contents entries for {len(inputs)} inputs{unfed}")
    return tuple(_decode_input(tensor, raw) for tensor, raw in zip(inputs, raws, strict=True))


def _decode_input(tensor: pb.ModelInferRequest.InferInputTensor, raw: memoryview | None) -> NamedTensor:
    with _Blaming("input", tensor.name):
        datatype = elements.datatype_named(tensor.datatype)
        shape = tuple(tensor.shape)
        if raw is None:
            data = elements.from_typed(tensor.contents, datatype, shape)
        else:
            data = elements.from_raw(raw, datatype, shape)
        return NamedTensor(tensor.name, datatype.name, data)


def _output_name(output: pb.ModelInferRequest.InferRequestedOutputTensor) -> str:
    with _Blaming("output", output.name):
        _refuse_region(output.parameters)
        _refuse_classification(output.parameters)
    return output.name


def _refuse_region(parameters: Mapping[str, pb.InferParameter]) -> None:
    for name in _REGION_PARAMETERS:
        if name in parameters:
            raise Unimplemented(
                f"parameter {name}: this server has no shared-memory extension; send tensors in the message"
            )


def _refuse_classification(parameters: Mapping[str, pb.InferParameter]) -> None:
    # Triton's clients mean "none" by zero.
    if "classification" in parameters and parameters["classification"] != pb.InferParameter(int64_param=0):
        raise Unimplemented("parameter classification: this server does not rank classes; leave the parameter out")


def _refuse_duplicates(kind: str, names: Iterable[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise InvalidArgument(f"{kind} {name!r} is named twice")
        seen.add(name)


def _own_deadline(parameters: Mapping[str, pb.InferParameter], now_ns: int) -> int | None:
    if TIMEOUT_PARAMETER not in parameters:
        return None
    parameter = parameters[TIMEOUT_PARAMETER]
    if parameter.WhichOneof("parameter_choice") != "int64_param":
        raise InvalidArgument(f"parameter {TIMEOUT_PARAMETER}: send the nanoseconds as int64_param")
    return min(now_ns + parameter.int64_param, _MAX_NS) if parameter.int64_param > 0 else None


def _earliest(*deadlines_ns: int | None) -> int | None:
    return min((deadline for deadline in deadlines_ns if deadline is not None), default=None)


def _reply_head(reply: InferReply) -> bytes:
    message = pb.ModelInferResponse(model_name=reply.model, model_version=reply.version, id=reply.id)
    for output in reply.outputs:
        message.outputs.add(name=output.name, datatype=output.datatype, shape=output.shape)
    return message.SerializeToString()


def _output_pieces(output: NamedTensor) -> list[bytes | memoryview]:
    with _Blaming("output", output.name):
        return elements.raw_pieces(output)


def _raw_output_tag(payload: Sequence[bytes | memoryview]) -> bytes:
    """What makes the payload that follows one entry of raw_output_contents."""
    return bytes((_RAW_OUTPUT << 3 | _LENGTH_DELIMITED, *_varint(_total(payload))))


def _varint(value: int) -> Iterator[int]:
    while value > 0x7F:  # noqa: PLR2004 - seven bits a byte, the eighth says that more follows
        yield value & 0x7F | 0x80
        value >>= 7
    yield value


def _total(pieces: Sequence[bytes | memoryview]) -> int:
    return sum(map(len, pieces))


def _check_limit(total_bytes: int, limit_bytes: int) -> None:
    if total_bytes > PROTOBUF_LIMIT_BYTES:
        raise ResourceExhausted(
            f"the reply takes {total_bytes} bytes; a protobuf message holds at most {PROTOBUF_LIMIT_BYTES}"
        )
    if total_bytes > limit_bytes:
        raise ResourceExhausted(
            f"the reply takes {total_bytes} bytes; the limit is {limit_bytes} (grpc.max_send_msg_bytes)"
        )


class _Blaming:
    """A context that puts the name of what is being looked at before the message of any error."""

    __slots__ = ("_kind", "_name")

    def __init__(self, kind: str, name: str) -> None:
        self._kind = kind
        self._name = name

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, NodeError):
            raise type(error)(f"{self._kind} {self._name!r}: {error}") from error
