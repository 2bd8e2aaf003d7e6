"""How many CPUs this process may use: affinity and cgroup quota, not the host's count.

ONNX Runtime and `os.cpu_count` see the host's processors; in a container with a quota of two, as many threads as the
host has processors would fight for two processors' time.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class UsableCpus:
    """The count, at least 1, and the sentence that says where it came from."""

    count: int
    origin: str


def usable_cpus(root: Path = Path("/")) -> UsableCpus:
    """The smaller of the affinity mask and the tightest cgroup quota above this process.

    A quota of 1.5 CPUs counts as one: a second thread would be throttled for half of each period, and hold up the
    first at every barrier.

    Args:
        root: stands for `/` of the host in tests.
    """
    affinity = len(os.sched_getaffinity(0))
    quota = min((*_v2_quotas(root), *_v1_quotas(root)), default=math.inf)
    if quota >= affinity:
        return UsableCpus(affinity, f"{affinity} CPU{'s' if affinity > 1 else ''} by affinity")
    return UsableCpus(max(1, int(quota)), f"cgroup quota of {quota:.3g} CPU{'' if quota == 1 else 's'}")


def _v2_quotas(root: Path) -> Iterator[float]:
    """`cpu.max` (quota and period in microseconds) of this process's group and of every group above."""
    for controllers, group in _memberships(root):
        if not controllers:
            for folder in _groups(root / "sys/fs/cgroup", group):
                quota, _, period = _read(folder / "cpu.max").partition(" ")
                yield from _quota(quota, period)


def _v1_quotas(root: Path) -> Iterator[float]:
    """`cpu.cfs_quota_us` over `cpu.cfs_period_us` of the cpu controller's groups."""
    for controllers, group in _memberships(root):
        if "cpu" in controllers.split(","):
            for folder in _groups(root / "sys/fs/cgroup/cpu", group):
                yield from _quota(_read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us"))


def _memberships(root: Path) -> Iterator[tuple[str, str]]:
    """Controllers and group, a line per hierarchy; version 2's has no controllers."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, _, rest = line.partition(":")
        controllers, _, group = rest.partition(":")
        yield controllers, group


def _quota(quota: str, period: str) -> Iterator[float]:
    """In CPUs; nothing where there is no limit (`max` in version 2, -1 in version 1) or no such file."""
    if quota.isdecimal() and period.isdecimal() and int(quota) and int(period):
        yield int(quota) / int(period)


def _groups(mount: Path, group: str) -> Iterator[Path]:
    """The group's folder and those above. In a container the path is the host's and only the mount itself is there."""
    folder = mount / group.strip("/")
    while folder != mount and mount in folder.parents:
        yield folder
        folder = folder.parent
    yield mount


def _read(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError):
        return ""
