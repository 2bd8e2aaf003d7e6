"""Causes of death in one line, and the records that are kept."""

from __future__ import annotations

import logging
import stat
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from reactant_node.supervisor.deaths import KEPT, Death, oom_kills, write_record

WHEN = datetime(2026, 12, 1, 1, 2, 3, 456789, tzinfo=UTC)


def death(code: int, *, killed_because: str = "", reason: str = "", oom: bool = False) -> Death:
    """A death of worker0."""
    return Death("worker0", 42, code, 12.34, killed_because, reason, oom)


@pytest.mark.parametrize(
    ("died", "cause"),
    [
        (death(0), "exit code 0 (ended by itself)"),
        (death(1), "exit code 1"),
        (death(1, reason="a defect"), "exit code 1 (a defect)"),
        (death(3), "exit code 3 (could not load its runtime)"),
        (death(3, reason="no CUDA provider"), "exit code 3 (no CUDA provider)"),
        (death(78), "exit code 78 (its configuration is wrong)"),
        (death(137), "exit code 137"),
        (death(-11), "killed by SIGSEGV"),
        (death(-6), "killed by SIGABRT"),
        (death(-9), "killed by SIGKILL (by somebody, or by the kernel for memory)"),
        (death(-9, oom=True), "killed by SIGKILL (out of memory in its cgroup)"),
        (death(-11, oom=True), "killed by SIGSEGV"),
        (
            death(-9, killed_because="no heartbeat for 10 s"),
            "killed by SIGKILL by the supervisor (no heartbeat for 10 s)",
        ),
        (death(-40), "killed by signal 40"),
    ],
)
def test_the_cause_is_said_in_words(died: Death, cause: str) -> None:
    """Signals by name, exit codes by meaning, the child's own reason before ours."""
    assert died.cause == cause


def write(root: Path, path: str, text: str) -> None:
    """A file of a host's."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text)


@pytest.mark.parametrize(
    ("files", "kills"),
    [
        ({}, 0),
        ({"proc/self/cgroup": "0::/a/b\n", "sys/fs/cgroup/a/b/memory.events": "oom 3\noom_kill 2\n"}, 2),
        ({"proc/self/cgroup": "0::/\n", "sys/fs/cgroup/memory.events": "low 0\noom_kill 5\noom_group_kill 0\n"}, 5),
        ({"proc/self/cgroup": "0::/of/the/host\n", "sys/fs/cgroup/memory.events": "oom_kill 1\n"}, 1),
        (
            {
                "proc/self/cgroup": "5:cpu:/x\n4:memory:/docker/1\n",
                "sys/fs/cgroup/memory/docker/1/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
            },
            4,
        ),
        ({"proc/self/cgroup": "4:memory:/x\n", "sys/fs/cgroup/memory/memory.oom_control": "oom_kill 1\n"}, 1),
        ({"proc/self/cgroup": "0::/\n"}, 0),
    ],
    ids=["no-cgroups", "v2", "v2-root", "v2-in-a-container", "v1", "v1-in-a-container", "no-memory-controller"],
)
def test_the_kernels_kills_for_memory_are_counted(tmp_path: Path, files: dict[str, str], kills: int) -> None:
    """In the group of this process, by either version of cgroups, as seen from a host or a container."""
    for path, text in files.items():
        write(tmp_path, path, text)
    assert oom_kills(tmp_path) == kills


def test_a_record_is_private_and_holds_cause_and_last_lines(tmp_path: Path) -> None:
    """Readable by the owner alone, since a log may quote anything."""
    folder = tmp_path / "deaths"
    write_record(folder, death(-11), [b"one", b"two \xff"], WHEN)
    (record,) = folder.iterdir()
    assert record.name == "20261201T010203.456789Z-worker0.txt"
    assert record.read_bytes() == b"worker0 pid 42 after 12.3 s: killed by SIGSEGV\n\none\ntwo \xff\n"
    assert stat.S_IMODE(record.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_only_the_newest_records_are_kept(tmp_path: Path) -> None:
    """A crash loop does not fill the disk, and other people's files stay."""
    (tmp_path / "notes.md").write_text("mine")
    for number in range(KEPT + 5):
        write_record(tmp_path, death(1), [], WHEN + timedelta(seconds=number))
    names = sorted(path.name for path in tmp_path.glob("*.txt"))
    assert len(names) == KEPT
    assert names[0].startswith("20261201T010208")
    assert (tmp_path / "notes.md").exists()


def test_a_folder_that_cannot_be_used_costs_one_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The node goes on."""
    (tmp_path / "deaths").write_text("a file")
    with caplog.at_level(logging.WARNING):
        write_record(tmp_path / "deaths", death(1), [], WHEN)
    (record,) = caplog.records
    assert "cannot keep a record of this death" in record.message
