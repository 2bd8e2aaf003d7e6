"""Settings of the whole suite."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

# Two cores carry several nodes beside the properties: how long an example takes says nothing here.
settings.register_profile("suite", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("suite")
