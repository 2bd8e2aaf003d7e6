"""From polls to steps: acted upon at rest, renames recognised, no model lost with a mount, nothing tried twice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reactant_node.models.changes import (
    FolderMark,
    Identity,
    Load,
    Outcome,
    Rename,
    RepositoryFollower,
    RootView,
    Step,
    Unload,
)

ROOT = "/models"
HOME: Identity = (1, 1)


def mark(folder: int, content: str = "", root: str = ROOT) -> FolderMark:
    """A folder by its inode, with some content."""
    return FolderMark((1, folder), content, root)


def view(folders: Mapping[str, FolderMark], identity: Identity | None = HOME, path: str = ROOT) -> RootView:
    """A root that can be read, unless it has no identity."""
    return RootView(path, identity, "" if identity else f"model repository {path} cannot be read", folders)


@dataclass
class Repository:
    """A follower and what was done at its word: the marks served by name, every load, and every name ever missing."""

    follower: RepositoryFollower
    served: dict[str, FolderMark] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    loads: list[str] = field(default_factory=list)

    @classmethod
    def serving(cls, folders: Mapping[str, FolderMark]) -> Repository:
        """One whose start set is these."""
        repository = cls(RepositoryFollower([view(folders)]))
        for name, found in folders.items():
            repository.perform(Load(name, found))
        repository.loads.clear()
        return repository

    def poll(self, *views: RootView) -> tuple[Step, ...]:
        """One poll, its steps performed."""
        steps = self.follower.poll(views)
        for step in steps:
            self.perform(step)
        return steps

    def polls(self, folders: Mapping[str, FolderMark], times: int = 2) -> tuple[Step, ...]:
        """Polls that all see the same; the steps of all."""
        return tuple(step for _ in range(times) for step in self.poll(view(folders)))

    def perform(self, step: Step) -> None:
        """As the worker would; contents that are `broken` cannot be loaded."""
        match step:
            case Load(name, found):
                self.loads.append(name)
                broken = any(word in str(found.signature) for word in self.broken)
                if not broken:
                    self.served[name] = found
                self.follower.record_loaded(step, Outcome.REFUSED if broken else Outcome.LOADED)
            case Rename(old, new, found, stays):
                assert self.served[old] == found
                self.served[new] = self.served[old] if stays else self.served.pop(old)
                self.follower.record_renamed(step)
            case Unload(name):
                self.served.pop(name, None)
                self.follower.record_unloaded(step)


A, B, C = mark(1, "a"), mark(2, "b"), mark(3, "c")


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        pytest.param({"a": A}, {"a": A}, [], id="nothing"),
        pytest.param({}, {"a": A}, [Load("a", A)], id="new"),
        pytest.param({"a": A}, {"a": mark(1, "z")}, [Load("a", mark(1, "z"))], id="changed"),
        pytest.param({"a": A}, {"a": mark(9, "a")}, [Load("a", mark(9, "a"))], id="another folder, files alike"),
        pytest.param({"a": A, "b": B}, {"b": B}, [Unload("a")], id="removed"),
        pytest.param({"a": A}, {"b": A}, [Rename("a", "b", A)], id="renamed"),
        pytest.param({"a": A}, {"b": mark(1, "z")}, [Unload("a"), Load("b", mark(1, "z"))], id="renamed and changed"),
        pytest.param({"a": A}, {"a": A, "b": A}, [Load("b", A)], id="a second link to a folder"),
        pytest.param(
            {"x-production": A, "x-staging": B},
            {"x-production-old": A, "x-production": B},
            [Rename("x-production", "x-production-old", A), Rename("x-staging", "x-production", B)],
            id="a chain",
        ),
        pytest.param({"a": A, "b": B}, {"b": A}, [Rename("a", "b", A)], id="onto one whose folder is gone"),
        pytest.param(
            {"a": A}, {"old": A, "a": B}, [Rename("a", "old", A, stays=True), Load("a", B)], id="aside, for a new one"
        ),
        pytest.param({"a": A, "b": B}, {"a": B, "b": A}, [Load("a", B), Load("b", A)], id="swapped"),
        pytest.param(
            {"a": A, "b": B, "c": C},
            {"a": C, "b": A, "c": B},
            [Load("a", C), Load("b", A), Load("c", B)],
            id="a ring of three",
        ),
    ],
)
def test_a_change_becomes_its_steps_once_two_polls_agree(
    before: dict[str, FolderMark], after: dict[str, FolderMark], expected: list[Step]
) -> None:
    """The first poll that sees it does nothing, the second does all, and then nothing is left to do."""
    repository = Repository.serving(before)
    assert repository.poll(view(after)) == ()
    assert list(repository.poll(view(after))) == expected
    assert repository.served == after
    assert repository.polls(after, 3) == ()
    assert not repository.follower.unsettled


def test_a_folder_that_is_being_written_waits_and_keeps_nobody_waiting() -> None:
    """Each name is at rest or not by itself."""
    repository = Repository.serving({})
    for size in range(5):
        repository.poll(view({"slow": mark(1, f"{size}"), "quick": B}))
        assert repository.follower.unsettled
    assert repository.loads == ["quick"]
    repository.polls({"slow": mark(1, "4"), "quick": B})
    assert repository.loads == ["quick", "slow"]


def test_what_goes_back_to_what_it_was_is_no_change() -> None:
    """A folder moved away and back between two polls is as it was."""
    repository = Repository.serving({"a": A})
    assert repository.poll(view({})) == ()
    assert repository.polls({"a": A}, 3) == ()


def test_what_failed_is_tried_again_only_when_its_folder_changes() -> None:
    """Once per content, however often it is polled; a model that is served goes on being it."""
    repository = Repository.serving({"good": A})
    repository.broken |= {"bad1", "bad2"}
    repository.polls({"good": mark(1, "bad1"), "new": mark(2, "bad1")}, 10)
    assert repository.loads == ["good", "new"]
    assert repository.served == {"good": A}
    assert not repository.follower.unsettled
    repository.polls({"good": mark(1, "bad2"), "new": mark(2, "fixed")}, 10)
    assert repository.loads == ["good", "new", "good", "new"]
    assert repository.served == {"good": A, "new": mark(2, "fixed")}


def test_a_name_that_could_not_be_loaded_is_loaded_and_not_renamed() -> None:
    """There is no session to go on with."""
    repository = Repository.serving({})
    repository.broken.add("bad")
    repository.polls({"a": mark(1, "bad")})
    repository.broken.clear()
    assert repository.polls({"b": mark(1, "bad")}) == (Unload("a"), Load("b", mark(1, "bad")))


def test_a_folder_whose_content_was_refused_is_not_what_is_served_when_it_is_renamed() -> None:
    """The session goes on under its name for as long as there is a folder, and is no stand-in under another."""
    repository = Repository.serving({"a": A})
    repository.broken.add("bad")
    repository.polls({"a": mark(1, "bad")})
    assert repository.served == {"a": A}
    assert repository.polls({"b": mark(1, "bad")}) == (Unload("a"), Load("b", mark(1, "bad")))
    assert repository.served == {}


def test_a_version_moved_aside_comes_back_when_the_next_one_fails() -> None:
    """Nothing is loaded for the way back, and the name is served all the time."""
    repository = Repository.serving({"a": A})
    repository.broken.add("bad")
    repository.polls({"old": A, "a": mark(2, "bad")})
    assert repository.served == {"old": A, "a": A}
    assert repository.polls({"a": A}) == (Rename("old", "a", A),)
    assert repository.served == {"a": A}


def test_a_folder_that_changed_while_it_was_loaded_is_a_change_whatever_it_is_then() -> None:
    """Also where it is gone, or looks as before."""
    follower = RepositoryFollower([view({})])
    for _ in range(2):
        steps = follower.poll([view({"a": A})])
    assert steps == (Load("a", A),)
    follower.record_loaded(Load("a", A), Outcome.CHANGED)
    assert follower.unsettled
    assert follower.poll([view({"a": A})]) == (Load("a", A),)
    follower.record_loaded(Load("a", A), Outcome.CHANGED)
    follower.poll([view({})])
    assert follower.poll([view({})]) == (Unload("a"),)


def test_a_rename_seen_in_two_halves_is_a_rename() -> None:
    """A poll may see the old name gone and not yet the new one, or both."""
    repository = Repository.serving({"a": A})
    repository.poll(view({}))
    assert repository.polls({"b": A}) == (Rename("a", "b", A),)
    repository.poll(view({"b": A, "c": A}))
    assert repository.poll(view({"c": A})) == ()
    assert repository.poll(view({"c": A})) == (Rename("b", "c", A),)
    assert repository.loads == []


@pytest.mark.parametrize("lost", [view({}, identity=None), view({}, identity=(7, 7))], ids=["unreadable", "unmounted"])
def test_a_lost_root_changes_nothing_and_is_said(lost: RootView) -> None:
    """A root that cannot be read, or is another folder and empty, says nothing about its models."""
    repository = Repository.serving({"a": A})
    for _ in range(5):
        assert repository.poll(lost) == ()
        (problem,) = repository.follower.problems
        assert ROOT in problem
        assert not repository.follower.unsettled
    assert repository.polls({"a": A}) == ()
    assert repository.follower.problems == ()
    assert repository.polls({"b": A}) == (Rename("a", "b", A),)


def test_a_root_that_was_emptied_is_empty() -> None:
    """The same folder without models means what it says; so does another folder with some."""
    repository = Repository.serving({"a": A, "b": B})
    assert repository.polls({}) == (Unload("a"), Unload("b"))
    swapped = Repository.serving({"a": A})
    for _ in range(2):
        swapped.poll(view({"c": C}, identity=(7, 7)))
    assert swapped.served == {"c": C}


def test_a_link_that_leads_nowhere_leaves_its_model_alone() -> None:
    """Storage behind one model may be gone while the repository is there."""
    repository = Repository.serving({"a": A, "b": B})
    dangling = RootView(ROOT, HOME, folders={"b": B}, unreachable=frozenset({"a", "never loaded"}))
    for _ in range(3):
        assert repository.poll(dangling) == ()
    (problem,) = repository.follower.problems
    assert "a lead" in problem


def test_the_first_root_that_holds_a_name_serves_it() -> None:
    """Also when it comes later; and a folder moved to another root is where it is."""
    other = mark(9, "o", "/other")
    repository = Repository(RepositoryFollower([view({}), view({}, (2, 2), "/other")]))

    def polls(here: dict[str, FolderMark], there: dict[str, FolderMark]) -> list[Step]:
        views = (view(here), view(there, (2, 2), "/other"))
        return [step for _ in range(2) for step in repository.poll(*views)]

    assert polls({}, {"a": other}) == [Load("a", other)]
    assert polls({"a": A}, {"a": other}) == [Load("a", A)]
    assert polls({}, {"a": mark(1, "a", "/other")}) == []
    assert repository.follower.applied["a"].root == "/other"


def test_what_changed_while_the_start_set_was_loaded_is_a_change() -> None:
    """The baseline is what was there before loading began."""
    repository = Repository(RepositoryFollower([view({"a": A})]))
    repository.perform(Load("a", A))
    assert repository.polls({"a": mark(1, "newer")}) == (Load("a", mark(1, "newer")),)


def test_repr_says_where_it_stands() -> None:
    """At rest or changing, and how much is served."""
    repository = Repository.serving({"a": A})
    assert repr(repository.follower) == "<RepositoryFollower at rest, 1 served of 1 folders>"
    repository.poll(view({}))
    assert repr(repository.follower) == "<RepositoryFollower changing, 1 served of 1 folders>"


NAMES = st.sampled_from("abcd")
OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("poll"), NAMES, NAMES),
        st.tuples(st.sampled_from(["write", "create", "remove", "move", "swap", "break"]), NAMES, NAMES),
    ),
    max_size=40,
)


class Disk:
    """Folders by name, each with an inode and a content that was never there before."""

    def __init__(self) -> None:
        self.folders: dict[str, FolderMark] = {}
        self.serial = 0

    def operate(self, operation: str, name: str, other: str) -> None:
        """Do one thing, where it can be done."""
        self.serial += 1
        folders, folder = self.folders, self.folders.get(name)
        if operation == "create" or (operation in ("write", "break") and folder is None):
            folders[name] = mark(self.serial, f"{self.serial}")
        elif operation in ("write", "break") and folder is not None:
            folders[name] = mark(folder.identity[1], f"{operation}{self.serial}")
        elif operation == "remove":
            folders.pop(name, None)
        elif operation == "move" and name in folders and name != other:
            folders[other] = folders.pop(name)
        elif operation == "swap" and name in folders and other in folders:
            folders[name], folders[other] = folders[other], folders[name]


@given(OPERATIONS)
def test_whatever_happens_on_disk_what_is_served_follows_it(operations: Sequence[tuple[str, str, str]]) -> None:
    """Nothing that was not seen twice is loaded, no served name that is there goes missing, and in the end all agrees.

    Contents whose name begins with "break" cannot be loaded: their names serve what they served, or nothing.
    """
    disk, repository = Disk(), Repository.serving({})
    repository.broken.add("break")
    previous: dict[str, FolderMark] = {}

    def poll() -> tuple[Step, ...]:
        nonlocal previous
        now, served = dict(disk.folders), set(repository.served)
        steps = repository.follower.poll([view(now)])
        for number, step in enumerate(steps):
            if isinstance(step, Load):
                assert step.mark == now[step.name] == previous.get(step.name)
                assert served & now.keys() <= repository.served.keys()
            else:
                assert not any(isinstance(earlier, Load) for earlier in steps[:number])
            repository.perform(step)
        previous = now
        return steps

    for operation, name, other in operations:
        if operation == "poll":
            poll()
        else:
            disk.operate(operation, name, other)
    for _ in range(3):
        poll()
    assert poll() == ()
    assert not repository.follower.unsettled
    assert repository.follower.applied == disk.folders
    assert repository.served.keys() <= disk.folders.keys()
    for name, found in disk.folders.items():
        if "break" not in str(found.signature):
            assert repository.served[name] == found
