"""From what successive polls of the repository saw to the steps that bring the models in line with it. Pure.

**Marks.** A poll sees each model folder as a mark: which folder it is (device and inode), and a signature of its
files. Two marks are equal when nothing that matters has happened in between, whatever the folder is called.

**At rest.** Files are copied while they are looked at. A change is acted upon when two polls in a row saw the same,
for each model by itself: one that is written to for an hour keeps no other waiting.

**Renames.** A mark that a session was made from and that turns up under another name, while the session's name is gone
or has become another folder, was renamed: the session goes on under the new name. Chains (`x` becomes `x-old` and
`x-new` becomes `x`, in one poll) are put into an order in which every target is free; where there is none, since names
were swapped in a ring, the folders are loaded anew. A name whose old session moves away and whose new folder has yet to
be loaded keeps the old session until then: `Rename.stays`. So no name that stays in the repository goes unserved.

**Failures.** What was tried is remembered, also where it failed: it is not tried again until the folder changes. Of a
folder that changed while it was loaded nothing is known, so that whatever the next polls see there is a change.

**Lost roots.** A root that cannot be read says nothing about its models, nor does one that has become another folder
without a model in it: what a lost mount looks like. Its models stay as they are, and so do single names whose link
leads nowhere.
"""

from __future__ import annotations

import enum
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

Identity = tuple[int, int]
"""Device and inode of a folder."""


@dataclass(frozen=True, slots=True)
class FolderMark:
    """One model folder at one moment.

    Attributes:
        identity: of the folder, links followed.
        signature: of all its files that matter to what is served; equal only where none has changed.
        root: the repository it is in; no part of the comparison.
    """

    identity: Identity
    signature: Hashable
    root: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class RootView:
    """One repository root at one moment.

    Attributes:
        path: as configured.
        identity: of the root; None where it cannot be read.
        problem: why it cannot, one sentence; empty where it can.
        folders: marks of its model folders by name.
        unreachable: names of entries that lead nowhere.
    """

    path: str
    identity: Identity | None
    problem: str = ""
    folders: Mapping[str, FolderMark] = field(default_factory=dict)
    unreachable: frozenset[str] = frozenset()


Observation = Sequence[RootView]
"""All roots, in the order in which they are looked through: the first that holds a name serves it."""


@dataclass(frozen=True, slots=True)
class Load:
    """A folder of this name is to be served; where the name is served already, it goes on until this one is ready."""

    name: str
    mark: FolderMark


@dataclass(frozen=True, slots=True)
class Rename:
    """What is served as `old` is served as `new` from now on, in place of what `new` was.

    Attributes:
        old: its name until now.
        new: its name from now on.
        mark: the folder's.
        stays: it is served as `old` as well, until the `Load` for that name has an end.
    """

    old: str
    new: str
    mark: FolderMark
    stays: bool = False


@dataclass(frozen=True, slots=True)
class Unload:
    """There is no folder of this name any more."""

    name: str


Step = Load | Rename | Unload


class Outcome(enum.Enum):
    """What came of a `Load`."""

    LOADED = enum.auto()
    REFUSED = enum.auto()
    CHANGED = enum.auto()
    """The folder changed meanwhile, so that it is unknown what it is."""


_UNKNOWN: Hashable = ("unknown",)
"""A signature that no folder has."""


class RepositoryFollower:
    """What has been applied of the repository, and what the last poll saw. Owned by the task that polls.

    The steps of one poll are in order: unloads and renames, which are done in no time, then loads. Whoever performs a
    step records it, before the next poll.

    Args:
        baseline: what loading begins from: later changes are seen against it. Of the loads that follow each is
            recorded, as those of later polls are.
    """

    def __init__(self, baseline: Observation) -> None:
        self._roots = {view.path: view.identity for view in baseline if view.identity is not None}
        self._applied: dict[str, FolderMark] = {}
        self._applied = self._merged(baseline)
        self._seen: Mapping[str, FolderMark] = dict(self._applied)
        self._served: dict[str, FolderMark] = {}
        self._problems: tuple[str, ...] = tuple(view.problem for view in baseline if view.problem)

    def __repr__(self) -> str:
        state = "changing" if self.unsettled else "at rest"
        return f"<RepositoryFollower {state}, {len(self._served)} served of {len(self._applied)} folders>"

    @property
    def applied(self) -> Mapping[str, FolderMark]:
        """The folders as last acted upon, by name."""
        return self._applied

    @property
    def served(self) -> Mapping[str, FolderMark]:
        """What the session of a name was made from, by name; not what its folder holds where that was refused."""
        return self._served

    @property
    def unsettled(self) -> bool:
        """Something is not yet as the last poll saw it."""
        return self._seen != self._applied

    @property
    def problems(self) -> tuple[str, ...]:
        """Why roots or names were left as they are by the last poll, one sentence each."""
        return self._problems

    def poll(self, observation: Observation) -> tuple[Step, ...]:
        """Take in what a poll saw; the steps that are due."""
        self._problems = tuple(self._problems_of(observation))
        now = self._merged(observation)
        moving = {name for name in {*now, *self._seen} if now.get(name) != self._seen.get(name)}
        self._seen = now
        for name in self._applied.keys() & now.keys():
            if self._applied[name] == now[name]:
                self._applied[name] = now[name]  # it may be in another root
        return tuple(plan_steps(self._applied, self._served, now, moving))

    def record_loaded(self, step: Load, outcome: Outcome) -> None:
        """A folder was loaded, or not; where it was not, what was served under its name still is."""
        changed = outcome is Outcome.CHANGED
        self._applied[step.name] = replace(step.mark, signature=_UNKNOWN) if changed else step.mark
        if outcome is Outcome.LOADED:
            self._served[step.name] = step.mark

    def record_renamed(self, step: Rename) -> None:
        """A model has its new name."""
        self._applied[step.new] = self._served[step.new] = step.mark
        if not step.stays:
            self._forget(step.old)

    def record_unloaded(self, step: Unload) -> None:
        """A model is gone."""
        self._forget(step.name)

    def _forget(self, name: str) -> None:
        self._applied.pop(name, None)
        self._served.pop(name, None)

    def _merged(self, observation: Observation) -> dict[str, FolderMark]:
        """Marks by name over all roots, with those that are lost from sight as they were."""
        merged: dict[str, FolderMark] = {}
        for view in observation:
            for name, mark in {**self._kept(view), **view.folders}.items():
                merged.setdefault(name, mark)
            if view.identity is not None and view.folders:
                self._roots[view.path] = view.identity
        return merged

    def _kept(self, view: RootView) -> dict[str, FolderMark]:
        lost = self._is_lost(view)
        return {
            name: mark
            for name, mark in self._applied.items()
            if mark.root == view.path and (lost or name in view.unreachable)
        }

    def _is_lost(self, view: RootView) -> bool:
        emptied = not view.folders and view.identity != self._roots.get(view.path, view.identity)
        return view.identity is None or emptied

    def _problems_of(self, observation: Observation) -> Iterator[str]:
        for view in observation:
            kept = sorted(self._kept(view))
            if view.problem:
                yield view.problem
            elif self._is_lost(view) and kept:
                yield f"model repository {view.path} is another folder now, an empty one: is its mount lost?"
            elif kept:
                yield f"model repository {view.path}: {', '.join(kept)} lead nowhere; the models stay as they are"


def plan_steps(
    applied: Mapping[str, FolderMark],
    served: Mapping[str, FolderMark],
    now: Mapping[str, FolderMark],
    moving: Collection[str],
) -> Iterator[Step]:
    """The steps from what is applied to what is there now, in the order in which they work.

    Args:
        applied: marks by name, as last acted upon.
        served: marks by name, as what has a session was when it was loaded.
        now: marks by name, as on disk.
        moving: names that are not at rest: nothing is done about them.
    """
    changed = {
        name for name in {*applied, *now} if now.get(name) != applied.get(name) and name not in moving
    } - _waiting(served, now, moving)
    renames = dict(_in_order(_renames(served, now, changed)))
    taken_over = set(renames.values())
    for name in sorted(changed - now.keys() - renames.keys()):
        yield Unload(name)
    to_load = sorted(changed & now.keys() - taken_over)
    for old, new in renames.items():
        yield Rename(old, new, now[new], stays=old in to_load)
    for name in to_load:
        yield Load(name, now[name])


def _waiting(served: Mapping[str, FolderMark], now: Mapping[str, FolderMark], moving: Collection[str]) -> set[str]:
    """Names that may be one half of a rename whose other half is not at rest yet."""
    leaving = {served[name].identity for name in moving if name in served}
    coming = {now[name].identity for name in moving if name in now}
    to_come = {name for name, mark in now.items() if mark.identity in leaving}
    to_leave = {name for name, mark in served.items() if mark.identity in coming}
    return to_come | to_leave


def _renames(
    served: Mapping[str, FolderMark], now: Mapping[str, FolderMark], changed: Collection[str]
) -> dict[str, str]:
    """Old name to new name."""
    leaving = {
        served[name]: name
        for name in sorted(changed & served.keys(), reverse=True)
        if name not in now or now[name].identity != served[name].identity
    }
    renames: dict[str, str] = {}
    for name in sorted(changed & now.keys()):
        if old := leaving.pop(now[name], None):
            renames[old] = name
    return renames


def _in_order(renames: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Each when its target has moved away; those in a ring are left out."""
    pending = dict(renames)
    while movable := [old for old, new in pending.items() if new not in pending]:
        for old in movable:
            yield old, pending.pop(old)
