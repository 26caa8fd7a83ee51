# SPDX-License-Identifier: Apache-2.0
"""What is looked at before anything is reconciled."""

from __future__ import annotations

import json

import pytest
from helpers.operator_rig import Rig

from ballast_operator.cluster import errors
from ballast_operator.edge.preflight import PreflightError, check_definitions


class Document:
    """A client that serves one document."""

    def __init__(self, document: dict | None) -> None:
        self._document = document

    async def get_path(self, path: str) -> dict:
        assert path == "/openapi/v3/apis/ballast.dev/v1alpha1"
        if self._document is None:
            raise errors.NotFound("nothing here")
        return self._document


@pytest.fixture
async def document(bare: Rig) -> dict:
    """What the API server publishes of the definitions of this release."""

    async def published() -> dict:
        found = await bare.client.get_path("/openapi/v3/apis/ballast.dev/v1alpha1")
        assert await check_definitions(Document(found)) is not None
        return found

    return await bare.until(published)


def schema(document: dict, kind: str) -> dict:
    return next(
        s
        for s in document["components"]["schemas"].values()
        if any(v["kind"] == kind for v in s.get("x-kubernetes-group-version-kind", ()))
    )


@pytest.mark.apiserver
async def test_the_definitions_of_this_release_lack_nothing(document: dict):
    assert await check_definitions(Document(document)) == []


@pytest.mark.apiserver
async def test_fields_that_an_older_definition_lacks_are_named(document: dict):
    """`helm upgrade` left the old definitions. kserve/kserve#2419."""
    older = json.loads(json.dumps(document))
    del schema(older, "InferenceModel")["properties"]["spec"]["properties"]["batching"]["properties"]["maxSize"]
    del schema(older, "WeightBudget")["properties"]["status"]["properties"]["shortfall"]
    assert await check_definitions(Document(older)) == [
        "InferenceModel spec.batching.maxSize",
        "WeightBudget status.shortfall",
    ]


@pytest.mark.apiserver
async def test_a_definition_that_is_missing_is_fatal(document: dict):
    with pytest.raises(PreflightError, match=r"ballast.dev/v1alpha1 are not installed: apply crds/\*.yaml"):
        await check_definitions(Document(None))
    schema(document, "WeightBudget")["x-kubernetes-group-version-kind"] = []
    with pytest.raises(PreflightError, match=r"weightbudgets.ballast.dev is not installed"):
        await check_definitions(Document(document))
