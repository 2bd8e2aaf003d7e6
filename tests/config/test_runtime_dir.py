"""The run-time folder: one node each, private, and a node file in it that is whole."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from reactant_node.config import runtime_dir
from reactant_node.config.runtime_dir import LOCK_NAME, NODE_FILE_NAME, claim_runtime_dir, write_node_file
from reactant_node.errors import ConfigError
from tests.support.config_nodes import Loader


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """/run and /tmp are in the test's folder."""
    monkeypatch.setattr(runtime_dir, "RUNTIME_DIR", tmp_path / "run" / "reactantserver")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def mode_of(path: Path) -> int:
    """Permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


def test_the_node_file_is_private_and_replaces_the_last_one_whole(here: Path, loader: Loader) -> None:
    """Mode 0600 whatever the umask, nothing left beside it, and a link in its place is not followed."""
    victim = here / "victim"
    victim.write_text("untouched")
    with claim_runtime_dir(str(here / "a" / "b")) as folder:
        (folder.path / NODE_FILE_NAME).symlink_to(victim)
        before = os.umask(0)
        try:
            path = write_node_file(folder.path, loader.load())
        finally:
            os.umask(before)
        assert (mode_of(path), mode_of(folder.path)) == (0o600, 0o700)
        assert {it.name for it in folder.path.iterdir()} == {NODE_FILE_NAME, LOCK_NAME}
    assert victim.read_text() == "untouched"
    assert not path.is_symlink()
    assert loader.load(None, config=str(path)) == loader.load()


def test_a_node_file_that_cannot_be_written_is_an_error(here: Path, loader: Loader) -> None:
    """A folder in its place, a full disk: the message names the file, and no part of one stays."""
    folder = here / "taken"
    (folder / NODE_FILE_NAME / "full").mkdir(parents=True)
    with pytest.raises(ConfigError, match=f"{NODE_FILE_NAME}: the node file cannot be written"):
        write_node_file(folder, loader.load())
    assert [it.name for it in folder.iterdir()] == [NODE_FILE_NAME]


def test_the_usual_folder_is_taken_where_nobody_said_otherwise(here: Path) -> None:
    """/run/reactantserver, which stays."""
    with claim_runtime_dir("") as folder:
        assert (folder.path, folder.note) == (here / "run" / "reactantserver", "")
    assert folder.path.is_dir()


def test_a_folder_that_was_asked_for_must_be_usable(here: Path) -> None:
    """A file in its place is an error that names the setting."""
    (here / "file").touch()
    with (
        pytest.raises(ConfigError, match=r"REACTANT_RUNTIME_DIR: got .*file', which cannot be used"),
        claim_runtime_dir(str(here / "file")),
    ):
        pass


def test_a_temporary_folder_serves_where_the_usual_one_cannot(here: Path, loader: Loader) -> None:
    """Private, and gone afterwards."""
    (here / "run").touch()
    with claim_runtime_dir("") as folder:
        assert folder.path.parent == here
        assert (mode_of(folder.path), folder.note) == (0o700, "")
        write_node_file(folder.path, loader.load())
    assert not folder.path.exists()


def test_a_temporary_folder_with_records_of_deaths_stays(here: Path) -> None:
    """For whoever is called at night."""
    (here / "run").touch()
    with claim_runtime_dir("") as folder:
        (folder.path / "deaths").mkdir()
    assert folder.path.exists()


def test_a_running_nodes_folder_is_not_taken_over(here: Path) -> None:
    """Asked for, it is an error that names who has it; not asked for, a temporary one is taken, with a word."""
    usual = here / "run" / "reactantserver"
    with claim_runtime_dir("") as first, claim_runtime_dir("") as second:
        assert first.path == usual != second.path
        assert f"{usual}: the running node with pid {os.getpid()} uses it" in second.note
        with pytest.raises(ConfigError, match=f"pid {os.getpid()} uses it"), claim_runtime_dir(str(usual)):
            pass
    with claim_runtime_dir(str(usual)):
        pass


def test_the_folder_is_free_however_its_node_ended(here: Path) -> None:
    """The kernel lets go of the lock of a killed node; a child that lives on does not hold it."""
    script = (
        "import os, subprocess, sys\n"
        "from reactant_node.config.runtime_dir import claim_runtime_dir\n"
        "with claim_runtime_dir(sys.argv[1]):\n"
        "    child = subprocess.Popen([sys.executable, '-c', 'open(0).read()'], stdin=0, stdout=subprocess.DEVNULL)\n"
        "    print(flush=True)\n"
        "    os.kill(os.getpid(), 9)\n"
    )
    command = [sys.executable, "-c", script, str(here / "run")]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, cwd=root, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as node:
        assert node.stdout is not None
        assert node.stdout.readline() == b"\n"
        assert node.wait(30) == -9
        with claim_runtime_dir(str(here / "run")) as folder:
            assert (folder.path / LOCK_NAME).read_text() == f"{os.getpid()}\n"
