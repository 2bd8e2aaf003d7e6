"""The models of a worker while it serves: loads them, swaps them, renames them and lets them go.

A model is loaded beside whatever runs: the session is made on the side thread, and only the few runs that prove its
batch axis go through the dispatch thread, since the device belongs to it. When the session is ready it takes its
place in the catalog, between two requests. Requests that came before hold the session they came for and run on it;
it is closed after the last of them. So both versions are in memory for a moment.

    new folder        LOADING, then READY; or UNAVAILABLE with the reason
    changed folder    READY throughout: as before, then as now; a change that cannot be served leaves what is
                      served as it is and is the reason shown with it
    renamed folder    the session goes on, under the new name, with all that is queued
    removed folder    gone; what is queued is answered UNAVAILABLE, what runs ends well

What is read between two looks at a folder that differ is not served: somebody was writing.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from reactant_node.clock import NS_PER_SECOND, Clock
from reactant_node.errors import ModelLoadError, NodeError, RuntimeUnavailable
from reactant_node.models.changes import FolderMark, Outcome
from reactant_node.models.observation import observe_folder
from reactant_node.models.repository import ModelFolder, RefusedFolder, scan_folder
from reactant_node.models.signature import BatchAxis
from reactant_node.runtime.interface import Runtime
from reactant_node.runtime.loading import LoadedModel, PreparedModel, prepare_model, probe_model
from reactant_node.scheduling.batching import BatchLimits
from reactant_node.worker.catalog import Catalog, ModelState, ServedModel
from reactant_node.worker.dispatch import Dispatcher
from reactant_node.worker.side_thread import SideThread

_log = logging.getLogger(__name__)


class FolderChanged(ModelLoadError):
    """The folder is not what it was when its loading was decided upon."""


class Library:
    """Belongs to the worker's loop, and is the only one that writes the catalog.

    One `load` at a time: whoever calls sees to it. The other methods return at once, and no request comes in between.
    """

    def __init__(
        self, runtime: Runtime, catalog: Catalog, dispatcher: Dispatcher, side_thread: SideThread, clock: Clock
    ) -> None:
        self._runtime = runtime
        self._catalog = catalog
        self._dispatcher = dispatcher
        self._side_thread = side_thread
        self._clock = clock
        self.loading = False

    def __repr__(self) -> str:
        return f"<Library {'loading' if self.loading else 'at rest'}, {self._catalog!r}>"

    def serves(self, name: str) -> bool:
        """There is a session under this name, be it an earlier version's."""
        model = self._catalog.models.get(name)
        return model is not None and model.session is not None

    def announce(self, name: str, version: str = "1") -> None:
        """Make a name known before its turn comes, so that a request for it is told to wait."""
        self._catalog.put(ServedModel(name, version))

    def set_aside(self, name: str, version: str = "1") -> None:
        """Make the name of a model known that is not to be loaded until somebody asks for it."""
        self._catalog.put(ServedModel(name, version, ModelState.UNLOADED))

    def refuse(self, name: str, reason: str) -> None:
        """A folder cannot be served: where an earlier version is, that one goes on."""
        model = self._catalog.models.get(name) or ServedModel(name, "1")
        if model.session is not None:
            self._catalog.put(model.kept(f"what its folder holds now is not served: {reason}"))
            _log.error("the update cannot be served, the version before it is: %s", reason, extra={"model": name})
            return
        self._catalog.put(model.moved_to(ModelState.UNAVAILABLE, reason=reason))
        _log.error("model cannot be served: %s", reason, extra={"model": name})

    async def load(self, name: str, mark: FolderMark) -> Outcome:
        """Load a folder and serve it; what comes of it is in the catalog, too.

        Args:
            name: the folder's, and the model's.
            mark: what and where the folder has to be.

        Raises:
            RuntimeUnavailable: there is no device, and the worker does not serve yet.
        """
        started_ns = self._clock.now_ns()
        if not self.serves(name):
            self._begin(name)
        self.loading = True
        try:
            folder, loaded = await self._load(name, mark)
        except FolderChanged as error:
            self.refuse(name, error.message)
            return Outcome.CHANGED
        except NodeError as error:
            if isinstance(error, RuntimeUnavailable) and not self._catalog.is_complete:
                raise
            self.refuse(name, error.message)
        except Exception as error:  # noqa: BLE001 - one model's oddity must not end the worker
            _log.exception("loading failed in an unforeseen way", extra={"model": name})
            self.refuse(name, f"{type(error).__name__}: {error}")
        else:
            self._publish(folder, loaded)
            _log_ready(folder, loaded, (self._clock.now_ns() - started_ns) / NS_PER_SECOND)
            return Outcome.LOADED
        finally:
            self.loading = False
        return Outcome.REFUSED

    def rename(self, old: str, new: str, *, stays: bool = False) -> None:
        """Serve as `new` what is served as `old`, in place of what `new` was; with `stays`, as `old` as well."""
        model, replaced = self._catalog.models[old], self._catalog.models.get(new)
        if stays:
            self._accept(new, model.batch_axis)
        else:
            self._dispatcher.rename_model(old, new)
            self._catalog.remove(old)
        self._catalog.put(model.renamed(new))
        self._let_go(replaced)
        _log.warning("model is served under another name", extra={"model": new, "before": old, "stays": stays})

    def unload(self, name: str, *, keep_name: bool = False) -> None:
        """Serve a model no more. With `keep_name` it stays known, to be loaded again."""
        model = self._catalog.models.get(name)
        if model is None:
            return
        if keep_name:
            self._catalog.put(model.moved_to(ModelState.UNLOADED))
        else:
            self._catalog.remove(name)
        if model.session is not None:
            self._dispatcher.remove_model(name)
        self._let_go(model)
        _log.info("model is unloaded", extra={"model": name})

    async def _load(self, name: str, mark: FolderMark) -> tuple[ModelFolder, LoadedModel]:
        prepared = await self._side_thread.call(partial(_prepare, self._runtime, name, mark))
        return prepared.folder, await self._dispatcher.call(partial(probe_model, prepared))

    def _begin(self, name: str) -> None:
        model = self._catalog.models.get(name)
        if model is None:
            self.announce(name)
        elif model.state is not ModelState.LOADING:
            self._catalog.put(model.moved_to(ModelState.LOADING))

    def _publish(self, folder: ModelFolder, loaded: LoadedModel) -> None:
        axis, before = loaded.batch_axis, self._catalog.models[folder.name]
        self._accept(folder.name, axis)
        self._catalog.put(
            before.moved_to(ModelState.READY, session=loaded.session, batch_axis=axis, version=folder.version)
        )
        self._let_go(before)

    def _accept(self, name: str, axis: BatchAxis | None) -> None:
        limits = BatchLimits() if axis is None else BatchLimits(axis.axis is not None, axis.max_rows)
        (self._dispatcher.replace_model if self.serves(name) else self._dispatcher.add_model)(name, limits)

    def _let_go(self, before: ServedModel | None) -> None:
        """Close the session of an entry that was replaced, unless it goes on under another name."""
        if before is None or before.session is None:
            return
        if not any(model.session is before.session for model in self._catalog.models.values()):
            self._dispatcher.retire(before.session)


def _prepare(runtime: Runtime, name: str, mark: FolderMark) -> PreparedModel:
    """On the side thread: make the session, from files that nobody changes meanwhile."""
    if observe_folder(mark.root, name) != mark:
        raise FolderChanged("its folder changed before it could be loaded")
    folder = scan_folder(Path(mark.root, name))
    if not isinstance(folder, ModelFolder):
        raise ModelLoadError(folder.reason if isinstance(folder, RefusedFolder) else "its folder holds no model")
    try:
        prepared = prepare_model(runtime, folder)
    except Exception as error:
        if observe_folder(mark.root, name) != mark:
            raise FolderChanged(f"its folder changed while it was loaded: {error}") from error
        raise
    if observe_folder(mark.root, name) != mark:
        prepared.session.close()
        raise FolderChanged("its folder changed while it was loaded")
    return prepared


def _log_ready(folder: ModelFolder, loaded: LoadedModel, seconds: float) -> None:
    fields = {"model": folder.name, "version": folder.version, "seconds": f"{seconds:.2f}"}
    _log.info("model is ready", extra={**fields, "batching": loaded.batch_axis.reason})
    log_warnings(folder.name, loaded.warnings)


def log_warnings(model: str, warnings: Sequence[str]) -> None:
    """What an operator should know of a model."""
    for warning in warnings:
        _log.warning("%s", warning, extra={"model": model})
