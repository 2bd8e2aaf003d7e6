"""Loading and unloading by request, for programs on this machine: `model_control_mode: explicit`."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import Any

from reactant_node.config.schema import WorkerConfig
from reactant_node.errors import FailedPrecondition, Internal, NotFound, PermissionDenied
from reactant_node.kserve import repository_control
from reactant_node.models.changes import FolderMark, RepositoryFollower
from reactant_node.models.observation import observe
from reactant_node.transport.addresses import is_loopback
from reactant_node.transport.interface import Buffer, CallContext, Routes
from reactant_node.worker.catalog import Catalog
from reactant_node.worker.library import Library
from reactant_node.worker.side_thread import SideThread
from reactant_node.worker.start_set import EXPLICIT


class ModelControl:
    """What RepositoryModelLoad and RepositoryModelUnload do. Belongs to the worker's loop; one request at a time."""

    def __init__(self, config: WorkerConfig, catalog: Catalog, library: Library, side_thread: SideThread) -> None:
        self._mode, self._roots = config.model_control_mode, config.model_dirs
        self._catalog, self._library, self._side_thread = catalog, library, side_thread
        self._marks: dict[str, FolderMark] = {}
        self._turn = asyncio.Lock()
        self._tasks: set[asyncio.Future[None]] = set()

    def __repr__(self) -> str:
        return f"<ModelControl {self._mode}{', busy' if self._turn.locked() else ''}>"

    def routes(self) -> Routes:
        """Method paths and their handlers."""
        return {repository_control.LOAD: self._answer_load, repository_control.UNLOAD: self._answer_unload}

    def begin_with(self, start: RepositoryFollower) -> None:
        """The start set is loaded: a request to load the same again has nothing to do."""
        self._marks.update(start.served)

    async def load(self, name: str) -> None:
        """Load a model of the repository, or load it again where its folder has changed.

        Raises:
            FailedPrecondition: the mode is another one.
            NotFound: no repository folder holds a folder of this name.
            Internal: it cannot be served, with the reason; what was served before still is.
        """
        self._require_explicit()
        await self._undisturbed(self._load(name))

    async def unload(self, name: str) -> None:
        """Let go of a model; it stays in the index. Doing it twice is no error.

        Raises:
            FailedPrecondition: the mode is another one.
            NotFound: there is no model of this name.
        """
        self._require_explicit()
        await self._undisturbed(self._unload(name))

    async def _answer_load(self, message: bytes, context: CallContext) -> Sequence[Buffer]:
        _require_loopback(context)
        await self.load(repository_control.decode_load(message))
        return (repository_control.LOADED,)

    async def _answer_unload(self, message: bytes, context: CallContext) -> Sequence[Buffer]:
        _require_loopback(context)
        await self.unload(repository_control.decode_unload(message))
        return (repository_control.UNLOADED,)

    def _require_explicit(self) -> None:
        if self._mode != EXPLICIT:
            raise FailedPrecondition(
                f"model_control_mode is {self._mode}: the repository decides what is served; "
                f"set it to {EXPLICIT} to load and unload models by request"
            )

    async def _load(self, name: str) -> None:
        async with self._turn:
            mark = await self._find(name)
            if self._library.serves(name) and self._marks.get(name) == mark:
                return
            await self._library.load(name, mark)
            if reason := self._catalog.models[name].reason:
                raise Internal(f"model '{name}': {reason}")
            self._marks[name] = mark

    async def _unload(self, name: str) -> None:
        async with self._turn:
            if name not in self._catalog.models:
                raise NotFound(f"unknown model '{name}'; RepositoryIndex lists the models there are")
            self._marks.pop(name, None)
            if self._library.serves(name):
                self._library.unload(name, keep_name=True)

    async def _find(self, name: str) -> FolderMark:
        """The folder, looked up among those there are: a name from a request is never part of a path."""
        views = await self._side_thread.call(partial(observe, self._roots, (name,)))
        for view in views:
            if name in view.folders:
                return view.folders[name]
        raise NotFound(f"there is no model '{name}' in {', '.join(self._roots)}")

    async def _undisturbed(self, work: Coroutine[Any, Any, None]) -> None:
        """Do it to the end, also when the client that asked for it goes away."""
        task = asyncio.ensure_future(work)
        self._tasks.add(task)  # the loop itself keeps only a weak reference
        task.add_done_callback(self._forget)
        await asyncio.shield(task)

    def _forget(self, task: asyncio.Future[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled():
            task.exception()  # looked at, since a client that has gone does not


def _require_loopback(context: CallContext) -> None:
    """What changes the state of the worker is for programs on this machine."""
    if not is_loopback(context.peer):
        raise PermissionDenied(
            f"{context.method.rpartition('/')[2]} is answered to programs on this machine, not to "
            f"{context.peer or 'an unknown peer'}; call the worker's own port from there"
        )
