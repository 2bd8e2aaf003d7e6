"""How many CPUs this process may use: affinity and cgroup quota, not the host's count.

ONNX Runtime and `os.cpu_count` see the host's processors; in a container with a quota of two, as many threads as the
host has processors would fight for two processors' time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

UNLIMITED_V1 = -1


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
    quotas = [quota for quota in (*_v2_quotas(root), *_v1_quotas(root)) if quota > 0]
    quota = min(quotas, default=float("inf"))
    if quota >= affinity:
        return UsableCpus(affinity, f"{affinity} CPUs by affinity")
    return UsableCpus(max(1, int(quota)), f"cgroup quota of {quota:g} CPUs")


def _v2_quotas(root: Path) -> Iterator[float]:
    """`cpu.max` of this process's group and of every group above."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        if line.startswith("0::"):
            yield from (_v2_quota(_read(group / "cpu.max")) for group in _groups(root / "sys/fs/cgroup", line[3:]))


def _v2_quota(text: str) -> float:
    fields = text.split()
    if len(fields) != 2 or fields[0] == "max":  # noqa: PLR2004 - "quota period"
        return 0.0
    return int(fields[0]) / int(fields[1])


def _v1_quotas(root: Path) -> Iterator[float]:
    """`cpu.cfs_quota_us` over `cpu.cfs_period_us` of the cpu controller's groups."""
    for line in _read(root / "proc/self/cgroup").splitlines():
        _, controllers, group = line.split(":", 2)
        if "cpu" in controllers.split(","):
            for folder in _groups(root / "sys/fs/cgroup/cpu", group):
                quota, period = _read(folder / "cpu.cfs_quota_us"), _read(folder / "cpu.cfs_period_us")
                yield int(quota) / int(period) if quota and period and int(quota) != UNLIMITED_V1 else 0.0


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
    except OSError:
        return ""
