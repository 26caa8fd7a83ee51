# SPDX-License-Identifier: Apache-2.0
"""The Secret of a namespace's workers, where the API server refuses it."""

from __future__ import annotations

import datetime as dt

import pytest
from helpers.memory_api import MemoryApi

from ballast_contract import names
from ballast_operator.cluster import errors
from ballast_operator.cluster.resources import SECRETS
from ballast_operator.reconcile.certificates import Certificates

NOW = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)


@pytest.mark.parametrize("error", [errors.Forbidden("exceeded quota"), errors.Invalid("a policy finds it invalid")])
async def test_a_secret_that_is_refused_is_an_obstacle_until_it_is_not(error: errors.ApiError):
    api = MemoryApi(now=lambda: "2026-01-01T00:00:00Z")
    certificates = Certificates(
        api, namespace="ballast", budgets=dict, seen=lambda _: False, now=lambda: NOW, period=60.0
    )
    await certificates.start()
    api.admit = lambda resource, *_: error if resource == SECRETS else None
    obstacle = await certificates.ensure("ns")
    assert error.message in obstacle
    assert f"'{names.WORKER_CERTIFICATE}'" in obstacle
    api.admit = lambda *_: None
    assert await certificates.ensure("ns") == ""
    assert api.find(SECRETS, "ns", names.WORKER_CERTIFICATE) is not None
