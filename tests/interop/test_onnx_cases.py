"""ONNX's own backend cases through a node of two workers, against ONNX Runtime in the test's process.

Every case's model is put into the repository, those too that nobody could serve: what the node lists as unavailable
is then exactly what is left out, so that nothing is left out unseen.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.support.interop_onnx import Case, backend_cases
from tests.support.interop_reference import NotServed, Reference
from tests.support.interop_wire import WireClient, WireTensor, infer_request, outputs_of
from tests.support.models import write_model
from tests.support.node import start_node

pytestmark = pytest.mark.artifact

LEAST_SERVED = 1600
"""Of some two thousand; a release of ONNX adds a few."""

REASONS = {
    "ONNX Runtime refuses the model",
    "a datatype goes in or out that KServe lacks",
    "seq(...) goes in or out",
    "optional(...) goes in or out",
}
"""All the reasons there may be for a case to be left out."""

REFUSALS = {"INVALID_ARGUMENT", "INTERNAL"}
"""How a node answers inputs that ONNX Runtime refuses."""


@dataclass(frozen=True, slots=True)
class Run:
    """Inputs of a case, and what ONNX Runtime makes of them: None where it refuses them."""

    case: str
    inputs: tuple[WireTensor, ...]
    outputs: tuple[WireTensor, ...] | None


def reference_runs(case: Case) -> list[Run]:
    """All runs of a case.

    Raises:
        NotServed: there can be none.
    """
    reference = Reference(case.model)
    return [Run(case.name, inputs, answer(reference, inputs)) for inputs in case.runs(reference.inputs)]


def answer(reference: Reference, inputs: tuple[WireTensor, ...]) -> tuple[WireTensor, ...] | None:
    """ONNX Runtime's outputs, or None where it refuses the inputs."""
    try:
        return reference.run(inputs)
    except Exception:  # noqa: BLE001 - ONNX Runtime has many classes for it
        return None


def difference(client: WireClient, run: Run) -> str:
    """What is wrong with the node's answer; empty where nothing is."""
    outcome = client.ask("ModelInfer", infer_request(run.case, *run.inputs))
    if run.outputs is None:
        return "" if outcome.code in REFUSALS else f"{run.case}: {outcome.code}, ONNX Runtime refuses the inputs"
    if outcome.code != "OK":
        return f"{run.case}: {outcome.code} {outcome.text}"
    found = outputs_of(pb.ModelInferResponse.FromString(outcome.reply))
    return "" if found == run.outputs else f"{run.case}: got {found}, not {run.outputs}"


def differences(target: str, runs: Iterable[Run]) -> list[str]:
    """All that is wrong, asked by two callers at once."""
    with WireClient(target) as client, ThreadPoolExecutor(2) as callers:
        return [found for found in callers.map(lambda run: difference(client, run), runs) if found]


def test_every_backend_case_is_answered_as_onnx_runtime_answers_it(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Bit for bit, NaN included; what is left out is unavailable in the node, for one of a few counted reasons."""
    cases = backend_cases()
    runs: list[Run] = []
    left_out: dict[str, str] = {}
    for case in cases:
        write_model(tmp_path / "models" / case.name, case.model)
        try:
            runs += reference_runs(case)
        except NotServed as reason:
            left_out[case.name] = str(reason)

    arguments = ("--models", str(tmp_path / "models"), "--backend", "cpu", "--workers", "2")
    with start_node(tmp_path, *arguments, environment={"REACTANT_WORKER_THREADS": "1"}) as node:
        with WireClient(node.wait_ready().grpc_target) as client:
            unavailable = {name: row.reason for name, row in client.index().items() if row.state == "UNAVAILABLE"}
        wrong = differences(node.grpc_target, runs)
        served_by = {name for name in ("worker0", "worker1") if f'worker="{name}"' in node.get("/metrics")[1]}
        assert node.stop() == 0

    served = {run.case for run in runs}
    refused = sum(run.outputs is None for run in runs)
    reasons = Counter(left_out.values())
    record_property(
        "ONNX backend cases",
        f"{len(served)} of {len(cases)} served and equal to ONNX Runtime, {refused} of them refused alike;"
        f" left out: {', '.join(f'{count} ({reason})' for reason, count in reasons.most_common())}",
    )
    assert wrong == []
    assert unavailable.keys() == left_out.keys()
    assert all(unavailable.values())
    assert len(served) + len(left_out) == len(cases)
    assert set(reasons) <= REASONS
    assert len(served) >= LEAST_SERVED
    assert refused < 10
    assert served_by == {"worker0", "worker1"}
