"""Settings of the whole suite."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, settings

# Two cores carry several nodes beside the properties: how long an example takes says nothing here.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print what tests say of themselves by `record_property`, under xdist too: counts that a log should show."""
    for report in terminalreporter.getreports("passed"):
        for name, value in report.user_properties:
            terminalreporter.write_line(f"{name}: {value}")
