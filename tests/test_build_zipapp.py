"""The one file's start: what it refuses, where it unpacks, and what it needs of itself afterwards."""

from __future__ import annotations

import ast
import hashlib
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

import build_zipapp
from config.zipapp import zipapp_launch
from tests.support.node import wait_until
from tests.support.tiny_zipapp import clean_environment, make_tiny_zipapp, start_zipapp


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One archive for the tests that only start it."""
    return make_tiny_zipapp(tmp_path_factory.mktemp("tiny"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """An empty home folder."""
    folder = tmp_path / "home"
    folder.mkdir()
    return folder


def only_line(text: str) -> str:
    """The text, which has to be one line."""
    assert text.count("\n") == 1, text
    return text.strip()


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "found", "way_out"),
    [
        ({"python": "cpython 3.99"}, "built for cpython 3.99, started with", 'start it as "python3.99 '),
        ({"machine": "pdp11"}, "built for pdp11, this host is", "build one here"),
        ({"glibc": (99, 0)}, "needs glibc 99.0 or newer, this host has", "use a newer"),
    ],
)
def test_a_host_it_was_not_built_for_gets_one_line(
    tmp_path: Path, home: Path, changes: dict[str, Any], found: str, way_out: str
) -> None:
    """Another Python, machine or C library is refused with the way out, exit code 78, and nothing unpacked."""
    ended = start_zipapp(make_tiny_zipapp(tmp_path, **changes), home=home)
    line = only_line(ended.stderr)
    assert found in line
    assert way_out in line
    assert (ended.returncode, ended.stdout) == (78, "")
    assert list(home.iterdir()) == []


def other_pythons() -> list[Path]:
    """Interpreters of other minor versions that are installed beside the one that runs the tests."""
    ours = f"python{sys.version_info.major}.{sys.version_info.minor}"
    found = Path(sys.base_prefix).parent.glob("*/bin/python[23].[0-9]*")
    return sorted(
        path for path in found if path.name.removeprefix("python").replace(".", "").isdigit() and path.name != ours
    )


@pytest.mark.parametrize("python", other_pythons(), ids=lambda path: path.name)
def test_another_installed_python_gets_the_same_line(tiny: Path, home: Path, python: Path) -> None:
    """The refusal is the first thing every other Python says, old ones included."""
    command = [str(python), str(tiny)]
    ended = subprocess.run(
        command, env=clean_environment(home), capture_output=True, text=True, timeout=60, check=False
    )
    assert "built for " in only_line(ended.stderr)
    assert ended.returncode == 78


def test_the_check_parses_on_old_pythons() -> None:
    """The first module holds no syntax newer than what the grammar can still be asked to refuse."""
    source = (build_zipapp.STARTER / "zipapp_main.py").read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 4))
    newer = (ast.JoinedStr, ast.AnnAssign, ast.NamedExpr, ast.AsyncFunctionDef)
    assert [node for node in ast.walk(tree) if isinstance(node, newer)] == []


def test_a_damaged_file_is_said_to_be_damaged(tmp_path: Path, home: Path) -> None:
    """A byte flipped in transport is one line, not a traceback, and leaves no folder."""
    damaged = make_tiny_zipapp(tmp_path)
    with zipfile.ZipFile(damaged) as archive:
        offset = archive.getinfo("site-packages/dependency.py").header_offset
    content = bytearray(damaged.read_bytes())
    content[offset + 30 + len("site-packages/dependency.py") + 4] ^= 0xFF
    damaged.write_bytes(content)
    ended = start_zipapp(damaged, home=home)
    said, refused = ended.stderr.splitlines()
    assert "unpacking to" in said
    assert "damaged" in refused
    assert ended.returncode == 78
    assert [path.name for path in (home / ".shiv").iterdir()] == [".tiny-1.lock"]


# -- the shell line at the top ---------------------------------------------------------------------------------------


def test_it_starts_with_the_python_it_was_built_for(tiny: Path, home: Path, tmp_path: Path) -> None:
    """Run by its name, the file picks its own Python even where python3 is another."""
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / f"python{sys.version_info.major}.{sys.version_info.minor}").symlink_to(sys.executable)
    (programs / "python3").write_text("#!/bin/sh\necho wrong\n")
    (programs / "python3").chmod(0o755)
    environment = clean_environment(home, PATH=str(programs))
    ended = subprocess.run([str(tiny)], env=environment, capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout.startswith("parent ")


def test_without_any_python_it_says_which_it_needs(tiny: Path, home: Path, tmp_path: Path) -> None:
    """The line names the version and where it was looked for."""
    environment = clean_environment(home, PATH=str(tmp_path))
    ended = subprocess.run([str(tiny)], env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert f"needs Python {sys.version_info.major}.{sys.version_info.minor}" in only_line(ended.stderr)
    assert ended.returncode == 78


# -- where it unpacks ------------------------------------------------------------------------------------------------


def test_the_first_start_says_where_it_unpacks_and_the_next_says_nothing(tiny: Path, home: Path) -> None:
    """Unpacking happens once per build, into a folder only this user can enter."""
    first, second = start_zipapp(tiny, home=home), start_zipapp(tiny, home=home)
    folder = home / ".shiv" / "tiny-1"
    assert only_line(first.stderr) == f"tiny.pyz: unpacking to {folder} (once per build; SHIV_ROOT=DIR moves it)"
    assert second.stderr == ""
    assert first.stdout == second.stdout == f"parent {folder}/site-packages/reactant_node/program.py ours\n"
    assert folder.parent.stat().st_mode & 0o777 == 0o700


def test_shiv_root_moves_it(tiny: Path, home: Path, tmp_path: Path) -> None:
    """The operator's folder is made with its parents, and the home folder is left alone."""
    ended = start_zipapp(tiny, home=home, SHIV_ROOT=str(tmp_path / "a" / "b"))
    assert f"parent {tmp_path}/a/b/tiny-1/" in ended.stdout
    assert list(home.iterdir()) == []


@pytest.mark.parametrize("home", ["{tmp_path}/missing", "/dev/null", "relative", "/proc"])
def test_without_a_usable_home_it_unpacks_to_a_private_temporary_folder(tiny: Path, tmp_path: Path, home: str) -> None:
    """A home folder that is missing or cannot be written is not made up; the line says where the files went."""
    ended = start_zipapp(tiny, home=home.format(tmp_path=tmp_path), TMPDIR=str(tmp_path))
    root = tmp_path / f"reactant-node-{os.getuid()}"
    assert f"unpacking to {root}/tiny-1 " in only_line(ended.stderr)
    assert ended.stdout.startswith(f"parent {root}/tiny-1/")
    assert root.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_code_cannot_be_run_from_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a file system mounted noexec the compiled modules would only fail later, one by one."""
    found = list(os.statvfs(tmp_path))
    found[8] |= os.ST_NOEXEC
    monkeypatch.setattr(os, "statvfs", lambda _: os.statvfs_result(found))
    with pytest.raises(PermissionError, match="mounted noexec"):
        zipapp_launch.make_root(tmp_path)


def test_without_any_usable_folder_it_names_the_setting(tiny: Path, home: Path) -> None:
    """One line says why, and which variable to set; exit code 78."""
    ended = start_zipapp(tiny, home=home, SHIV_ROOT="/dev/null/sub")
    assert only_line(ended.stderr) == (
        "tiny.pyz: cannot unpack (/dev/null/sub: Not a directory); set SHIV_ROOT to a folder for it"
    )
    assert ended.returncode == 78


def test_a_full_disk_is_one_line_and_leaves_no_folder(tiny: Path, home: Path) -> None:
    """What was written before the disk was full is removed again."""
    limited = ["sh", "-c", 'ulimit -f 8; exec "$@"', "sh", sys.executable, str(tiny)]
    environment = clean_environment(home, SHIV_ROOT=str(home))
    ended = subprocess.run(limited, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert ended.stderr.splitlines()[1:] == [
        f"tiny.pyz: cannot unpack ({home}: File too large); set SHIV_ROOT to a folder for it"
    ]
    assert ended.returncode == 78
    assert [path.name for path in home.iterdir()] == [".tiny-1.lock"]


def test_first_starts_at_once_unpack_one_after_the_other_and_once(tiny: Path, home: Path) -> None:
    """Whoever comes second waits for the first and uses what it unpacked."""
    with zipapp_launch.exclusive(home / ".tiny-1.lock"):
        started = [popen_zipapp(tiny, env=clean_environment(home, SHIV_ROOT=str(home))) for _ in range(2)]
        wait_until(lambda: all(waits_for_a_lock(process) for process in started), "both wait for whoever unpacks")
        assert not (home / "tiny-1").exists()
    ended = [process.communicate(timeout=60) for process in started]
    assert [process.returncode for process in started] == [0, 0]
    assert len({out for out, _ in ended}) == 1
    assert "".join(err for _, err in ended).count("unpacking") == 1


def waits_for_a_lock(process: subprocess.Popen[str]) -> bool:
    """Whether the kernel holds a process back from a lock that another has."""
    assert process.poll() is None, "it did not wait"
    lines = Path("/proc/locks").read_text(encoding="ascii").splitlines()
    return any("->" in line and str(process.pid) in line.split() for line in lines)


def test_a_start_killed_while_unpacking_leaves_nothing_that_is_used(tiny: Path, home: Path) -> None:
    """The folder appears by a rename, after the last byte; the next start begins anew and tidies up."""
    killed_before_the_rename = f"""
import os, pathlib, signal, sys
os.sync = lambda: os.kill(os.getpid(), signal.SIGKILL)
sys.path.insert(0, {str(tiny)!r})
import zipapp_launch
zipapp_launch.launch(pathlib.Path({str(tiny)!r}), "tiny-1")
"""
    assert start_zipapp("-c", killed_before_the_rename, home=home).returncode == -9
    (left,) = home.glob(".shiv/.tiny-1.part")
    (left / "site-packages" / "dependency.py").write_text("WHOSE = 'half'")
    ended = start_zipapp(tiny, home=home)
    assert ended.stdout.endswith(" ours\n")
    assert not left.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_root_that_another_user_owns_is_passed_over(tiny: Path, home: Path, tmp_path: Path) -> None:
    """Its owner could exchange a build after it was looked at: nothing is unpacked there, and nothing found there."""
    root = tmp_path / "reactant-node-0"
    good = start_zipapp(tiny, home=Path("/dev/null"), TMPDIR=str(tmp_path))
    assert good.returncode == 0, good.stderr
    assert [entry for entry in root.iterdir() if entry.is_dir()]
    os.chown(root, 12345, -1)

    ended = start_zipapp(tiny, home=Path("/dev/null"), TMPDIR=str(tmp_path))

    assert ended.returncode == 78
    assert "it belongs to another user (uid 12345)" in ended.stderr
    assert start_zipapp(tiny, home=home, TMPDIR=str(tmp_path)).returncode == 0


@pytest.mark.parametrize(
    ("mode", "doubt"), [(0o700, None), (0o755, None), (0o1777, None), (0o777, "write"), (0o775, "write")]
)
def test_a_root_that_others_can_write_to_needs_the_sticky_bit(tmp_path: Path, mode: int, doubt: str | None) -> None:
    """With it, only the owner of an entry can rename it."""
    tmp_path.chmod(mode)
    found = zipapp_launch.distrust_root(tmp_path)
    assert found is None if doubt is None else doubt in (found or "")


def test_a_folder_that_another_user_could_have_filled_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Code is run from a real folder of this user or root that nobody else can write."""
    folder = tmp_path / "unpacked"
    (folder / "site-packages").mkdir(parents=True)
    assert zipapp_launch.distrust(folder) is None
    (tmp_path / "link").symlink_to(folder)
    assert zipapp_launch.distrust(tmp_path / "link") == "link is not a folder"
    folder.chmod(0o777)
    assert zipapp_launch.distrust(folder) == "unpacked can be written by other users"
    folder.chmod(0o755)
    if os.getuid() == 0:
        os.chown(folder, 12345, -1)
    else:
        monkeypatch.setattr(os, "getuid", lambda: 12345)
    assert "belongs to another user" in str(zipapp_launch.distrust(folder))


def popen_zipapp(*command: Path | str, env: dict[str, str], cwd: Path | None = None) -> subprocess.Popen[str]:
    """A started zipapp with pipes for its standard streams."""
    arguments = [sys.executable, *map(str, command)]
    pipe = subprocess.PIPE
    return subprocess.Popen(arguments, env=env, cwd=cwd, text=True, stdin=pipe, stdout=pipe, stderr=pipe)


def overwrite_members(file: Path) -> None:
    """Makes it what another build with the same layout is to a process that has read the directory: other bytes."""
    content = bytearray(file.read_bytes())
    with zipfile.ZipFile(file) as archive:
        for member in archive.infolist():
            data = member.header_offset + 30 + len(member.filename)
            content[data : data + member.compress_size] = b"\xff" * member.compress_size
    file.write_bytes(content)


# -- what runs afterwards --------------------------------------------------------------------------------------------


def test_nothing_on_pythonpath_replaces_ours(tiny: Path, home: Path, tmp_path: Path) -> None:
    """The packages inside the file come first."""
    (tmp_path / "dependency.py").write_text("WHOSE = 'theirs'")
    assert start_zipapp(tiny, home=home, PYTHONPATH=str(tmp_path)).stdout.endswith(" ours\n")
    assert start_zipapp("-I", tiny, home=home).stdout.endswith(" ours\n")


@pytest.mark.parametrize("start", ["path", "symlink", "renamed", "relative"])
@pytest.mark.parametrize("then", ["kept", "deleted", "replaced"])
def test_a_process_spawned_later_runs_what_its_parent_runs(
    tiny: Path, home: Path, tmp_path: Path, start: str, then: str
) -> None:
    """However the file was named at the start, and whatever became of it, children come from the unpacked folder."""
    file = tmp_path / ("renamed" if start == "renamed" else "tiny.pyz")
    shutil.copy(tiny, file)
    if start == "symlink":
        (tmp_path / "link").symlink_to(file)
    named = {"symlink": str(tmp_path / "link"), "relative": file.name}.get(start, str(file))
    process = popen_zipapp(named, "spawn", cwd=tmp_path, env=clean_environment(home))
    assert process.stdout is not None
    assert process.stdout.readline().startswith("parent ")
    if then == "deleted":
        file.unlink()
    elif then == "replaced":
        overwrite_members(file)
    out, err = process.communicate("go on\n", timeout=60)
    assert out == f"child {home}/.shiv/tiny-1/site-packages/reactant_node/late.py []\nexit 0\n"
    assert "Traceback" not in err
    assert process.returncode == 0


# -- how it is built -------------------------------------------------------------------------------------------------


def test_equal_input_gives_equal_bytes(tmp_path: Path) -> None:
    """A build can be compared with another by its hash."""
    digests = set()
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        digests.add(hashlib.sha256(make_tiny_zipapp(tmp_path / name).read_bytes()).hexdigest())
    assert len(digests) == 1


def test_requirements_are_the_projects_and_the_flavors() -> None:
    """Exactly one ONNX Runtime goes in."""
    project = {"project": {"dependencies": ["a>=1"], "optional-dependencies": {"cpu": ["b"], "cuda": ["c"]}}}
    assert build_zipapp.requirements_of(project, "cpu") == ["a>=1", "b"]
    assert build_zipapp.requirements_of(project, "cuda") == ["a>=1", "c"]


def test_the_newest_wheel_decides_which_glibc_is_needed() -> None:
    """One wheel accepts the oldest of its tags; old names of tags count as the versions they stand for."""
    wheels = [
        "Tag: cp311-cp311-manylinux_2_27_x86_64\nTag: cp311-cp311-manylinux_2_28_x86_64\n",
        "Tag: cp311-cp311-manylinux2014_aarch64\n",
        "Tag: py3-none-any\n",
    ]
    assert build_zipapp.required_glibc(wheels) == (2, 27)
    assert build_zipapp.required_glibc(wheels[1:]) == (2, 17)
    assert build_zipapp.required_glibc(wheels[2:]) == (0, 0)


@pytest.mark.parametrize("name", ["hook.pth", "json.py", "logging"])
def test_packages_that_a_first_place_on_the_path_cannot_hold_stop_the_build(tmp_path: Path, name: str) -> None:
    """A .pth file would not be run, and a module named as one of Python's own would hide it."""
    (tmp_path / name).touch()
    with pytest.raises(build_zipapp.BuildError, match=name):
        build_zipapp.check_layout(tmp_path)


def test_the_output_is_named_after_the_flavor() -> None:
    """Both flavors can lie side by side."""
    assert build_zipapp.parse([]).output.name == "reactant-node.pyz"
    assert build_zipapp.parse(["--flavor", "cuda"]).output.name == "reactant-node-cuda.pyz"
    assert build_zipapp.parse(["--output", "x"]).output == Path("x")


def test_an_unusable_interpreter_is_named(tmp_path: Path) -> None:
    """--python says what was found and what is accepted."""
    with pytest.raises(build_zipapp.BuildError, match="--python: got '/nonexistent'"):
        build_zipapp.probe("/nonexistent")
    old = tmp_path / "old"
    old.write_text('#!/bin/sh\necho \'["/usr/bin/python3.9", "cpython 3.9", "x86_64", false]\'\n')
    old.chmod(0o755)
    with pytest.raises(build_zipapp.BuildError, match=r"is cpython 3\.9; use a Python 3\.11 or newer"):
        build_zipapp.probe(str(old))
