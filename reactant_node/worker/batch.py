"""Rows of several requests as one execution, and its outputs as several answers.

A lone request that needs no padding passes through untouched. Otherwise each input is copied once, into the place of
its rows; padding is zeros (empty texts), and the outputs' padded rows are given to nobody. Answers are views of the
joined outputs: the rows of one request, and only the outputs it asked for.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from reactant_node.errors import Internal
from reactant_node.runtime.interface import Session
from reactant_node.tensors import NamedTensor


@dataclass(frozen=True, slots=True, eq=False)
class Job:
    """One request, ready to run.

    Attributes:
        model: name, for queue bounds and counters.
        session: the session that was ready when the request was accepted.
        inputs: checked against the session's signature.
        outputs: names wanted, in order.
        axis: where its rows are in every input and output; None: it runs alone.
        rows: extent of that axis, 1 where there is none.
        deadline_ns: absolute, or None.
    """

    model: str
    session: Session
    inputs: tuple[NamedTensor, ...]
    outputs: tuple[str, ...]
    axis: int | None = None
    rows: int = 1
    deadline_ns: int | None = None

    @property
    def variant(self) -> Hashable:
        """Equal for requests that may share an execution: one session, and each input alike but for its rows."""
        shapes = sorted((tensor.name, tensor.datatype, _other_extents(tensor, self.axis)) for tensor in self.inputs)
        return id(self.session), tuple(shapes)


Answers = list[list[NamedTensor]]


def run_together(jobs: Sequence[Job], batch_size: int) -> Answers:
    """One execution for all; the answers in the order of the jobs.

    Args:
        jobs: of one session and variant; several only with a batch axis.
        batch_size: rows to run at, at least the rows of all.

    Raises:
        NodeError: what the run raised.
        Internal: an output does not follow the batch axis.
    """
    first = jobs[0]
    if len(jobs) == 1 and batch_size <= first.rows:
        return [first.session.run(first.inputs, first.outputs)]
    wanted = tuple(dict.fromkeys(name for job in jobs for name in job.outputs))
    axis = first.axis or 0
    inputs = [_joined([job.inputs for job in jobs], tensor, axis, batch_size) for tensor in first.inputs]
    outputs = {output.name: output for output in first.session.run(inputs, wanted)}
    for output in outputs.values():
        if output.data.ndim <= axis or output.data.shape[axis] != batch_size:
            raise Internal(f"output '{output.name}' has shape {list(output.shape)} for {batch_size} joined rows")
    answers, start = [], 0
    for job in jobs:
        answers.append([_rows(outputs[name], axis, start, start + job.rows) for name in job.outputs])
        start += job.rows
    return answers


def _other_extents(tensor: NamedTensor, axis: int | None) -> tuple[int, ...]:
    return tensor.shape if axis is None else tensor.shape[:axis] + tensor.shape[axis + 1 :]


def _joined(requests: Sequence[Sequence[NamedTensor]], like: NamedTensor, axis: int, batch_size: int) -> NamedTensor:
    parts: list[NDArray[Any]] = [
        next(tensor.data for tensor in inputs if tensor.name == like.name) for inputs in requests
    ]
    missing = batch_size - sum(part.shape[axis] for part in parts)
    if missing:
        shape = (*like.shape[:axis], missing, *like.shape[axis + 1 :])
        parts.append(np.full(shape, "", dtype=object) if like.datatype == "BYTES" else np.zeros(shape, like.data.dtype))
    return NamedTensor(like.name, like.datatype, np.concatenate(parts, axis))


def _rows(output: NamedTensor, axis: int, start: int, stop: int) -> NamedTensor:
    index = (slice(None),) * axis + (slice(start, stop),)
    return NamedTensor(output.name, output.datatype, output.data[index])
