# SPDX-License-Identifier: Apache-2.0
"""What clients may call: here, elsewhere, later, or not at all."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ballast_contract.reasons import Reason
from ballast_worker.control.assignment import AssignedModel, Hop, Routes
from ballast_worker.control.catalog import WorkerCatalog
from ballast_worker.control.models import Built, Failure, ModelView, Stage
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving.catalog import Elsewhere, Endpoint, Here

OTHER = Endpoint("10.0.0.2", 8000, 8001)
ROUTES = Routes(
    1, {"m": (Hop("me", Endpoint("10.0.0.1", 8000, 8001)), Hop("other", OTHER)), "far": (Hop("other", OTHER),)}
)


@pytest.fixture
def catalog():
    return WorkerCatalog("me")


@pytest.fixture
def served(small_bundle):
    view = ModelView(AssignedModel(name="m", uri="file:///m"), stage=Stage.SERVED)
    return replace(view, serving=Built(small_bundle, (), 0))


def test_a_served_model_is_here_with_the_same_manifest_each_time(catalog, served, small_bundle):
    catalog.update(served)
    found = catalog.find("m")
    assert isinstance(found, Here)
    assert found.manifest is small_bundle.manifest
    catalog.update(replace(served, message="something else"))
    assert catalog.find("m") is found


def test_a_model_of_the_pool_is_never_unknown(catalog):
    catalog.route(ROUTES)
    assert catalog.find("far") == Elsewhere((OTHER,))
    assert catalog.find("nobody's") is None


def test_a_worker_is_no_way_to_itself(catalog):
    catalog.route(Routes(1, {"m": (Hop("me", OTHER),)}))
    assert catalog.find("m") is None


def test_a_model_on_its_way_is_answered_by_whoever_has_it(catalog, served):
    pending = replace(served, stage=Stage.BUILDING, serving=None, message="compiling")
    catalog.update(pending)
    waiting = catalog.find("m")
    assert isinstance(waiting, Refusal)
    assert waiting.reason is Reason.MEASURING
    assert "compiling" in waiting.message
    assert waiting.retry_after_seconds
    catalog.route(ROUTES)
    assert catalog.find("m") == Elsewhere((OTHER,))
    catalog.update(served)
    assert isinstance(catalog.find("m"), Here)


def test_a_refused_model_says_why_and_whether_to_try_again(catalog, served):
    failure = Failure(Reason.BUNDLE_INVALID, "broken")
    catalog.update(replace(served, stage=Stage.REFUSED, serving=None, failure=failure))
    assert catalog.find("m") == Refusal(Reason.BUNDLE_INVALID, "broken", None)
    failure = Failure(Reason.SOURCE_NOT_FOUND, "not there")
    catalog.update(replace(served, stage=Stage.REFUSED, serving=None, failure=failure))
    assert catalog.find("m").retry_after_seconds


def test_old_bytes_serve_on_while_new_ones_are_refused(catalog, served):
    catalog.update(replace(served, stage=Stage.REFUSED, failure=Failure(Reason.BUNDLE_INVALID, "broken")))
    assert isinstance(catalog.find("m"), Here)


def test_a_released_worker_passes_calls_on(catalog, served):
    catalog.set_ready()
    catalog.update(served)
    assert catalog.ready()
    catalog.release()
    assert not catalog.ready()
    assert catalog.find("m").reason is Reason.DRAINING
    catalog.route(ROUTES)
    assert catalog.find("m") == Elsewhere((OTHER,))


def test_a_removed_model_is_forgotten(catalog, served):
    catalog.update(served)
    catalog.remove("m")
    assert catalog.find("m") is None
