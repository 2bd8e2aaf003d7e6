"""One ONNX Runtime per test process, as in a worker."""

from __future__ import annotations

import pytest

from reactant_node.config.schema import Backend
from reactant_node.runtime.ort import OrtRuntime


@pytest.fixture(scope="session")
def runtime() -> OrtRuntime:
    """On the CPU, one thread."""
    return OrtRuntime(Backend.CPU, 1)
