"""What a request has to look like for a model, and where a graph shows its batch axis."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from reactant_node.errors import InvalidArgument
from reactant_node.models.signature import (
    BatchAxis,
    Dimension,
    ModelSignature,
    TensorSpec,
    batch_rows,
    check_request,
    describe_shape,
    infer_batch_axis,
)

Shape = tuple[Dimension, ...] | None


@dataclass(frozen=True)
class Header:
    """What a client says of a tensor."""

    name: str
    datatype: str
    shape: tuple[int, ...]


SIGNATURE = ModelSignature(
    (TensorSpec("x", "FP32", ("n", 4)), TensorSpec("ids", "INT64", ("n", None))),
    (TensorSpec("y", "FP32", ("n", 2)), TensorSpec("z", "FP32", ("n",))),
)
X = Header("x", "FP32", (3, 4))
IDS = Header("ids", "INT64", (3, 7))
ROWS = BatchAxis(0, "declared", declared=True, max_rows=8)


def signature(inputs: dict[str, Shape], outputs: dict[str, Shape]) -> ModelSignature:
    """A signature of FP32 tensors."""
    return ModelSignature(
        tuple(TensorSpec(name, "FP32", shape) for name, shape in inputs.items()),
        tuple(TensorSpec(name, "FP32", shape) for name, shape in outputs.items()),
    )


@pytest.mark.parametrize(
    ("inputs", "outputs"),
    [
        ((X, IDS), ()),
        ((IDS, X), ("z", "y")),
        ((Header("x", "FP32", (0, 4)), Header("ids", "INT64", (1, 0))), ("y",)),
    ],
    ids=["all outputs", "any order", "any extent on a symbolic axis, zero included"],
)
def test_a_fitting_request_passes(inputs: tuple[Header, ...], outputs: tuple[str, ...]) -> None:
    """Order is free, and symbolic and unnamed dimensions take any extent."""
    check_request("m", SIGNATURE, inputs, outputs, ROWS)


@pytest.mark.parametrize(
    ("inputs", "outputs", "message"),
    [
        ((X,), (), "model 'm': input 'ids' is missing; the inputs are 'x', 'ids'"),
        ((), (), "model 'm': input 'x', 'ids' is missing; the inputs are 'x', 'ids'"),
        ((X, IDS, Header("q", "FP32", ())), (), "model 'm': input 'q' does not exist; use 'x', 'ids'"),
        ((X, IDS, X), (), "model 'm': input 'x' is given twice; give it once"),
        ((Header("x", "FP64", (3, 4)), IDS), (), "model 'm': input 'x': datatype FP64, the model takes FP32"),
        (
            (Header("x", "FP32", (4,)), IDS),
            (),
            "model 'm': input 'x': shape [4], the model takes [n,4]: rank 2, not 1",
        ),
        (
            (Header("x", "FP32", (3, 5)), IDS),
            (),
            "model 'm': input 'x': shape [3,5], the model takes [n,4]: axis 1 has to be 4, not 5",
        ),
        ((X, IDS), ("q",), "model 'm': output 'q' does not exist; use 'y', 'z'"),
        ((X, IDS), ("y", "y"), "model 'm': output 'y' is given twice; give it once"),
        (
            (Header("x", "FP32", (9, 4)), IDS),
            (),
            "model 'm': input 'x': 9 rows in one request, at most 8 are accepted",
        ),
    ],
)
def test_a_request_that_does_not_fit_is_refused_naming_what_was_found_and_what_is_accepted(
    inputs: tuple[Header, ...], outputs: tuple[str, ...], message: str
) -> None:
    """Each mistake has its own sentence with the model and the tensor in it."""
    with pytest.raises(InvalidArgument) as raised:
        check_request("m", SIGNATURE, inputs, outputs, ROWS)
    assert raised.value.message == message


def test_a_tensor_without_declared_rank_takes_any_shape_and_a_scalar_only_its_own() -> None:
    """`()` and None are different declarations."""
    unranked, scalar = signature({"x": None}, {}), signature({"x": ()}, {})
    check_request("m", unranked, [Header("x", "FP32", (2, 3))], ())
    check_request("m", scalar, [Header("x", "FP32", ())], ())
    with pytest.raises(InvalidArgument, match="rank 0, not 1"):
        check_request("m", scalar, [Header("x", "FP32", (1,))], ())


def test_a_batch_model_without_declared_rank_still_needs_its_batch_axis() -> None:
    """A scalar has no rows."""
    with pytest.raises(InvalidArgument, match=r"shape \[\] lacks the batch axis 0"):
        check_request("m", signature({"x": None}, {}), [Header("x", "FP32", ())], (), BatchAxis(0, "declared"))


def test_one_symbol_first_in_every_input_and_output_is_the_batch_axis() -> None:
    """The name does not matter, that it is the same does."""
    found = infer_batch_axis(signature({"x": ("rows", 4), "m": ("rows",)}, {"y": ("rows", None)}))
    assert found == BatchAxis(0, "the first dimension of every input and output is 'rows'")


@pytest.mark.parametrize(
    ("inputs", "outputs", "reason"),
    [
        ({}, {"y": ("n",)}, "the graph has no inputs"),
        ({"x": (1, 3)}, {"y": ("n", 3)}, "the first dimension of input 'x' is fixed at 1"),
        ({"x": (None, 3)}, {"y": (None, 3)}, "the first dimension of input 'x' has no name"),
        ({"x": ("n", 3)}, {"y": ()}, "output 'y' is a scalar"),
        ({"x": ("n", 3)}, {"y": None}, "output 'y' declares no shape"),
        ({"x": ("n", 3)}, {"y": ("m",)}, "the first dimension is 'n' in input 'x' and 'm' in output 'y'"),
    ],
)
def test_anything_else_has_no_batch_axis_and_says_why(
    inputs: dict[str, Shape], outputs: dict[str, Shape], reason: str
) -> None:
    """The first tensor that speaks against it is named."""
    assert infer_batch_axis(signature(inputs, outputs)) == BatchAxis(None, reason)


@pytest.mark.parametrize(
    ("axis", "shapes", "rows"),
    [(None, [(5, 4)], 1), (0, [(5, 4), (5, 1)], 5), (0, [(5, 4), (2, 1)], 1), (1, [(5, 4)], 4), (0, [(0, 4)], 0)],
)
def test_rows_are_the_extent_of_the_batch_axis(axis: int | None, shapes: list[tuple[int, ...]], rows: int) -> None:
    """One where there is no axis, or where the inputs disagree about it."""
    headers = [Header(str(index), "FP32", shape) for index, shape in enumerate(shapes)]
    assert batch_rows(BatchAxis(axis, ""), headers) == rows


def test_shapes_are_written_as_people_write_them() -> None:
    """Fixed, symbolic, unnamed, scalar and undeclared look different."""
    assert describe_shape((2, "n", None)) == "[2,n,?]"
    assert describe_shape(()) == "[]"
    assert describe_shape(None) == "any shape"
