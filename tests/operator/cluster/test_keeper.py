# SPDX-License-Identifier: Apache-2.0
"""The thread of the Lease, with an API server that answers when the test lets it."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from ballast_operator.cluster import errors, keeper
from ballast_operator.cluster.keeper import LeaseKeeper


class SlowApi:
    """Holds one Lease; renewals wait for `answers`."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.renewing = threading.Event()
        self.answers = threading.Event()

    async def get(self, *_: Any) -> dict[str, Any]:
        if self.lease is None:
            raise errors.NotFound("no Lease", status=404)
        return self.lease

    async def create(self, _: Any, body: dict[str, Any], **__: Any) -> dict[str, Any]:
        self.lease = {**body, "metadata": {**body["metadata"], "resourceVersion": "1"}}
        return self.lease

    async def replace(self, _: Any, body: dict[str, Any], **__: Any) -> dict[str, Any]:
        self.renewing.set()
        self.answers.wait(30)
        return body

    async def close(self) -> None:
        return


def test_other_writes_are_to_wait_while_a_renewal_is_late_and_no_longer(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(keeper, "RETRY_SECONDS", 0.01)
    monkeypatch.setattr(keeper, "_LATE_SECONDS", 0.0)
    api = SlowApi()

    async def connect() -> Any:
        return api

    lost: list[str] = []
    found = LeaseKeeper(connect, identity="me", namespace="ns", name="lease", on_lost=lost.append)
    assert not found.late
    found.start()
    assert api.renewing.wait(30)
    assert found.late
    api.answers.set()
    found.stop()
    assert not found.late
    assert lost == []
