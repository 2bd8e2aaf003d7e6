"""The built files, and the folder that all starts of them unpack to."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.node import SHIV_ROOT, ZIPAPP


@pytest.fixture(scope="session")
def zipapp() -> Path:
    """The built CPU flavor; without it the tests fail rather than pass unseen."""
    assert ZIPAPP.exists(), "run `make zipapp` first, or the whole suite by `make test`"
    return ZIPAPP


@pytest.fixture(scope="session")
def shiv_root() -> Path:
    """Where the built files unpack, once per build."""
    return SHIV_ROOT
