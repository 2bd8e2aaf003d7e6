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

from reactant_node.clock import Clock
from reactant_node.errors import Internal
from reactant_node.runtime.interface import Session
from reactant_node.tensors import NamedTensor
from reactant_node.worker.statistics import ExecutionTimes


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


def run_together(jobs: Sequence[Job], batch_size: int, clock: Clock) -> tuple[Answers, ExecutionTimes]:
    """One execution for all; the answers in the order of the jobs, and how long it took.

    Args:
        jobs: of one session and variant; several only with a batch axis.
        batch_size: rows to run at, at least the rows of all.
        clock: for the times.

    Raises:
        NodeError: what the run raised.
        Internal: an output does not follow the batch axis.
    """
    started_ns = clock.now_ns()
    first = jobs[0]
    alone = len(jobs) == 1 and batch_size <= first.rows
    inputs = first.inputs if alone else _joined_inputs(jobs, batch_size)
    wanted = first.outputs if alone else tuple(dict.fromkeys(name for job in jobs for name in job.outputs))
    joined_ns = clock.now_ns()
    outputs = first.session.run(inputs, wanted)
    ran_ns = clock.now_ns()
    answers = [outputs] if alone else _split(jobs, outputs, batch_size)
    return answers, ExecutionTimes(joined_ns - started_ns, ran_ns - joined_ns, clock.now_ns() - ran_ns)


def _joined_inputs(jobs: Sequence[Job], batch_size: int) -> list[NamedTensor]:
    first = jobs[0]
    return [_joined([job.inputs for job in jobs], tensor, first.axis or 0, batch_size) for tensor in first.inputs]


def _split(jobs: Sequence[Job], outputs: Sequence[NamedTensor], batch_size: int) -> Answers:
    axis, by_name = jobs[0].axis or 0, {output.name: output for output in outputs}
    for output in outputs:
        if output.data.ndim <= axis or output.data.shape[axis] != batch_size:
            raise Internal(f"output '{output.name}' has shape {list(output.shape)} for {batch_size} joined rows")
    answers, start = [], 0
    for job in jobs:
        answers.append([_rows(by_name[name], axis, start, start + job.rows) for name in job.outputs])
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
