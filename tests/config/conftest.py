"""Fixtures of the configuration's tests."""

from __future__ import annotations

from tests.support.config_nodes import loader

__all__ = ["loader"]
