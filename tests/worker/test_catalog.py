"""A model's life in a worker, and what readiness means."""

from __future__ import annotations

from itertools import product

import pytest

from reactant_node.errors import InvalidArgument, ModelLoadError, NotFound, Unavailable
from reactant_node.worker.catalog import Catalog, ModelState, ServedModel

MOVES = {
    (ModelState.LOADING, ModelState.READY),
    (ModelState.LOADING, ModelState.UNAVAILABLE),
    (ModelState.READY, ModelState.READY),
    (ModelState.READY, ModelState.UNLOADED),
    (ModelState.UNAVAILABLE, ModelState.LOADING),
    (ModelState.UNLOADED, ModelState.LOADING),
}


class NoSession:
    """Stands for a session that is never run."""


def ready(name: str) -> ServedModel:
    """A model that can run."""
    return ServedModel(name, "1").moved_to(ModelState.READY, session=NoSession())  # type: ignore[arg-type]


def refused(name: str) -> ServedModel:
    """A model that could not be loaded."""
    return ServedModel(name, "1").moved_to(ModelState.UNAVAILABLE, reason="no such operator")


@pytest.mark.parametrize(("start", "end"), list(product(ModelState, ModelState)))
def test_a_model_moves_along_its_life_and_nowhere_else(start: ModelState, end: ModelState) -> None:
    """What is not READY begins with LOADING; anything beside the table is an error that names both states."""
    model = ServedModel("m", "1", start)
    if (start, end) in MOVES:
        assert model.moved_to(end).state is end
    else:
        with pytest.raises(ValueError, match=f"from {start} to {end}"):
            model.moved_to(end)


def test_a_worker_is_ready_once_the_start_set_is_through_and_one_model_runs() -> None:
    """A refused model does not keep a worker from being ready; having none that runs does."""
    catalog = Catalog()
    assert catalog.not_ready_reason() is not None
    catalog.put(ServedModel("a", "1"))
    catalog.put(refused("b"))
    assert catalog.not_ready_reason() == "loading models, 1 to go"
    catalog.put(ready("a"))
    catalog.complete()
    assert catalog.not_ready_reason() is None


def test_a_worker_without_a_model_that_runs_is_not_ready_and_says_why() -> None:
    """An empty repository and one of refused models are told apart."""
    catalog = Catalog()
    catalog.complete()
    assert catalog.not_ready_reason() == "the model repository holds no model"
    catalog.put(refused("b"))
    assert catalog.not_ready_reason() == "no model could be loaded"


def test_what_a_request_for_a_model_is_answered_follows_its_state() -> None:
    """Unknown and refused models are NOT_FOUND, a loading one UNAVAILABLE, and the reason is told."""
    catalog = Catalog()
    catalog.put(ready("good"))
    catalog.put(refused("bad"))
    catalog.put(ServedModel("slow", "1"))
    assert catalog.ready_model("good", "1")[0].name == "good"
    with pytest.raises(NotFound, match="unknown model 'nobody'"):
        catalog.ready_model("nobody")
    with pytest.raises(ModelLoadError, match="no such operator"):
        catalog.ready_model("bad")
    with pytest.raises(Unavailable, match="still loading"):
        catalog.ready_model("slow")


def test_a_model_that_is_being_added_takes_no_readiness_away() -> None:
    """Where something is served a newcomer changes nothing; where nothing is, it says what is waited for."""
    catalog = Catalog()
    catalog.complete()
    catalog.put(ServedModel("new", "1"))
    assert catalog.not_ready_reason() == "the first model is being loaded"
    catalog.put(ready("a"))
    assert catalog.not_ready_reason() is None


def test_a_worker_whose_models_are_asked_for_is_ready_without_any() -> None:
    """Once its start set is through; what is not loaded is UNAVAILABLE, and the message says how to load it."""
    catalog = Catalog(on_demand=True)
    assert catalog.not_ready_reason() is not None
    catalog.complete()
    assert catalog.not_ready_reason() is None
    catalog.put(ready("m").moved_to(ModelState.UNLOADED))
    with pytest.raises(Unavailable, match="RepositoryModelLoad"):
        catalog.ready_model("m")


def test_an_update_that_cannot_be_served_leaves_session_and_version_and_says_so() -> None:
    """The reason stands beside READY until the next session takes over."""
    model = ready("m")
    kept = model.kept("no such operator")
    assert (kept.state, kept.version, kept.session) == (ModelState.READY, "1", model.session)
    assert kept.reason == "no such operator"
    swapped = kept.moved_to(ModelState.READY, session=NoSession(), version="2")  # type: ignore[arg-type]
    assert (swapped.version, swapped.reason) == ("2", "")


def test_a_model_that_was_removed_is_unknown() -> None:
    """And the others stay."""
    catalog = Catalog()
    catalog.put(ready("a"))
    catalog.put(ready("b"))
    catalog.remove("a")
    assert list(catalog.models) == ["b"]
    with pytest.raises(NotFound, match="unknown model 'a'"):
        catalog.ready_model("a")


@pytest.mark.parametrize("version", ["abc", "-5", "1.0", "99999999999999999999", "²"])
def test_a_malformed_version_is_the_clients_mistake(version: str) -> None:
    """What is no 64-bit positive number is INVALID_ARGUMENT, as Triton answers."""
    catalog = Catalog()
    catalog.put(ready("good"))
    with pytest.raises(InvalidArgument):
        catalog.ready_model("good", version)


def test_a_version_that_is_not_served_is_not_found_and_names_the_one_that_is() -> None:
    """The message says which version there is."""
    catalog = Catalog()
    catalog.put(ready("good"))
    with pytest.raises(NotFound, match="version '1' is"):
        catalog.ready_model("good", "99")
