"""Nodes that the tests of this folder share: one of a sole worker, one of two workers behind the gateway."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.interop_models import write_repository
from tests.support.interop_wire import WireClient
from tests.support.node import NodeProcess, start_node


@pytest.fixture(scope="session")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that both nodes serve."""
    return write_repository(tmp_path_factory.mktemp("interop") / "models")


@pytest.fixture(scope="session")
def one_worker(repository: Path) -> Iterator[NodeProcess]:
    """A node whose sole worker listens on the public port itself."""
    arguments = ("--models", str(repository), "--backend", "cpu", "--workers", "1")
    with start_node(repository.parent / "one", *arguments) as node:
        yield node.wait_ready()
        assert node.stop() == 0


@pytest.fixture(scope="session")
def two_workers(repository: Path) -> Iterator[NodeProcess]:
    """A node of two workers behind the gateway."""
    arguments = ("--models", str(repository), "--backend", "cpu", "--workers", "2")
    with start_node(repository.parent / "two", *arguments) as node:
        yield node.wait_ready()
        assert node.stop() == 0


@pytest.fixture(params=["one_worker", "two_workers"])
def node(request: pytest.FixtureRequest) -> NodeProcess:
    """Either node: nothing a client sees differs between them."""
    found: NodeProcess = request.getfixturevalue(request.param)
    return found


@pytest.fixture
def client(node: NodeProcess) -> Iterator[WireClient]:
    """A client of either node."""
    with WireClient(node.grpc_target) as client:
        yield client
