"""A model's life in a worker, and what readiness means."""

from __future__ import annotations

from itertools import product

import pytest

from reactant_node.errors import InvalidArgument, ModelLoadError, NotFound, Unavailable
from reactant_node.worker.catalog import Catalog, ModelState, ServedModel


class NoSession:
    """Stands for a session that is never run."""


def ready(name: str) -> ServedModel:
    """A model that can run."""
    return ServedModel(name, "1").moved_to(ModelState.READY, session=NoSession())  # type: ignore[arg-type]


def refused(name: str) -> ServedModel:
    """A model that could not be loaded."""
    return ServedModel(name, "1").moved_to(ModelState.UNAVAILABLE, reason="no such operator")


@pytest.mark.parametrize(("start", "end"), list(product(ModelState, ModelState)))
def test_only_loading_moves_and_only_to_an_end(start: ModelState, end: ModelState) -> None:
    """LOADING becomes READY or UNAVAILABLE; anything else is an error that names both states."""
    model = ServedModel("m", "1", start)
    if start is ModelState.LOADING and end is not ModelState.LOADING:
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
