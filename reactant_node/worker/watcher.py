"""The model set follows the repository: polls it, and has the library do what is due.

`model_poll_seconds` pass between polls of a repository at rest. In between, every second, a glance at the folders
themselves: a folder that came, went, was renamed or had a file replaced shows there, and is polled at once. While
something is changing polls follow each other every two seconds, so that what is copied is served within a few seconds
of the last byte. Two polls that agree are at least that far apart: shorter pauses of a copy are not taken for its end.

The watcher never ends by itself: whatever a poll raises is logged, and the next one comes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Hashable, Sequence
from functools import partial

from reactant_node.models.changes import Load, Rename, RepositoryFollower, RootView, Step, Unload
from reactant_node.models.observation import glance, observe
from reactant_node.worker.library import Library
from reactant_node.worker.side_thread import SideThread

GLANCE_SECONDS = 1.0
"""A stat of each folder costs microseconds; a second is what "at once" means to whoever moved one in."""

SETTLE_SECONDS = 2.0
"""Longer than the pauses of a copy over a network, short enough to wait for."""

_log = logging.getLogger(__name__)


class RepositoryWatcher:
    """One task on the worker's loop. Owns the follower.

    Args:
        roots: repository folders.
        include: names to look at; empty means all.
        poll_seconds: between polls of a repository at rest; also the longest of the other two waits.
        follower: knows what was loaded at start.
        library: performs the steps.
        side_thread: looks at the disk.
    """

    def __init__(
        self,
        roots: Sequence[str],
        include: Sequence[str],
        poll_seconds: float,
        follower: RepositoryFollower,
        library: Library,
        side_thread: SideThread,
    ) -> None:
        self._roots, self._include, self._poll_seconds = roots, include, poll_seconds
        self._follower, self._library, self._side_thread = follower, library, side_thread
        self._glance: Hashable = None
        self._problems: tuple[str, ...] = follower.problems

    def __repr__(self) -> str:
        return f"<RepositoryWatcher {self._follower!r}>"

    async def run(self) -> None:
        """Follow the repository for ever."""
        while True:
            try:
                await self._poll()
            except Exception:  # noqa: BLE001 - a watcher that ended would leave the node as it is for ever
                _log.exception("a poll of the model repository failed")
            await self._rest()

    async def _poll(self) -> None:
        self._glance, observation = await self._side_thread.call(self._look)
        steps = self._follower.poll(observation)
        self._report(self._follower.problems)
        for step in steps:
            await self._perform(step)

    def _look(self) -> tuple[Hashable, tuple[RootView, ...]]:
        return glance(self._roots), observe(self._roots, self._include)

    async def _perform(self, step: Step) -> None:
        match step:
            case Unload(name):
                self._library.unload(name)
                self._follower.record_unloaded(step)
            case Rename(old, new, _, stays):
                self._library.rename(old, new, stays=stays)
                self._follower.record_renamed(step)
            case Load(name, mark):
                self._follower.record_loaded(step, await self._library.load(name, mark))

    async def _rest(self) -> None:
        """Return when the next poll is due."""
        if self._follower.unsettled:
            await asyncio.sleep(min(SETTLE_SECONDS, self._poll_seconds))
            return
        left = self._poll_seconds
        while left > 0:
            await asyncio.sleep(nap := min(GLANCE_SECONDS, left))
            left -= nap
            if left > 0 and await self._side_thread.call(partial(glance, self._roots)) != self._glance:
                return

    def _report(self, problems: tuple[str, ...]) -> None:
        """Say each problem once, when it begins, and that there is none when the last has gone."""
        for problem in problems:
            if problem not in self._problems:
                _log.warning("%s; the models served from there stay as they are", problem)
        if self._problems and not problems:
            _log.info("the model repository can be read again")
        self._problems = problems
