"""The CPUs this process may use, from affinity and quotas in a folder that stands for `/`."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reactant_node.supervisor.cpus import UsableCpus, usable_cpus


@pytest.fixture
def _eight_by_affinity(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))


def write(root: Path, files: dict[str, str]) -> Path:
    """Files below a root."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


@pytest.mark.parametrize(
    ("files", "count", "origin"),
    [
        ({}, 8, "8 CPUs by affinity"),
        ({"proc/self/cgroup": "0::/\n"}, 8, "8 CPUs by affinity"),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "max 100000\n"}, 8, "8 CPUs by affinity"),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 100000\n"}, 2, "cgroup quota of 2 CPUs"),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "100000 100000\n"}, 1, "cgroup quota of 1 CPU"),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "150000 100000\n"}, 1, "cgroup quota of 1.5 CPUs"),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "50000 100000\n"}, 1, "cgroup quota of 0.5 CPUs"),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "1600000 100000\n"}, 8, "8 CPUs by affinity"),
        (
            {
                "proc/self/cgroup": "0::/pod/box\n",
                "sys/fs/cgroup/pod/box/cpu.max": "600000 100000\n",
                "sys/fs/cgroup/pod/cpu.max": "300000 100000\n",
                "sys/fs/cgroup/cpu.max": "max 100000\n",
            },
            *(3, "cgroup quota of 3 CPUs"),
        ),
        (
            {  # a container that sees the host's path, and its own group at the mount
                "proc/self/cgroup": "4:cpu,cpuacct:/docker/abc\n3:memory:/docker/abc\n",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "400000\n",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
            },
            *(4, "cgroup quota of 4 CPUs"),
        ),
        (
            {
                "proc/self/cgroup": "4:cpuacct,cpu:/a\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "-1\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000\n",
            },
            *(8, "8 CPUs by affinity"),
        ),
        (
            {  # both versions at once: the tighter one
                "proc/self/cgroup": "1:cpu:/a\n0::/b\n",
                "sys/fs/cgroup/cpu/a/cpu.cfs_quota_us": "500000",
                "sys/fs/cgroup/cpu/a/cpu.cfs_period_us": "100000",
                "sys/fs/cgroup/b/cpu.max": "700000 100000",
            },
            *(5, "cgroup quota of 5 CPUs"),
        ),
        ({"proc/self/cgroup": "0::/../..\n", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2, "cgroup quota of 2 CPUs"),
        ({"proc/self/cgroup": "rubbish\n\n0::\n", "sys/fs/cgroup/cpu.max": "1 2 3"}, 8, "8 CPUs by affinity"),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/cpu.max": "200000 0"}, 8, "8 CPUs by affinity"),
    ],
)
@pytest.mark.usefixtures("_eight_by_affinity")
def test_the_tightest_of_affinity_and_quotas_counts(
    tmp_path: Path, files: dict[str, str], count: int, origin: str
) -> None:
    """Own group and every group above, both cgroup versions; rounded down, since a throttled thread holds up others."""
    assert usable_cpus(write(tmp_path, files)) == UsableCpus(count, origin)


def test_affinity_is_this_processs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cpuset of one CPU is one CPU, whatever the host has."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {5})
    assert usable_cpus(tmp_path) == UsableCpus(1, "1 CPU by affinity")


def test_this_host_has_an_answer() -> None:
    """Read from the real files."""
    assert 1 <= usable_cpus().count <= (os.cpu_count() or 1)
