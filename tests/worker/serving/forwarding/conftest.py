# SPDX-License-Identifier: Apache-2.0
"""A worker that is asked for models of other workers, and workers that a test plays."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import pytest
from helpers.forwarding import Counted, Silent
from helpers.wire import Played, Wire

from ballast_worker.serving.catalog import Elsewhere
from ballast_worker.serving.forwarded import Forwarded, Result

LIMIT = 256 << 20


@pytest.fixture(scope="module")
def way(make_server, affine):
    """The worker that is asked, for models that it does not have."""
    return make_server({"near": affine}, config={"max_request_bytes": LIMIT, "request_timeout_seconds": 20})


@pytest.fixture
def played() -> Iterator[Played]:
    """The worker that has `far`."""
    played = Played()
    yield played
    played.close()


@pytest.fixture
def second() -> Iterator[Played]:
    played = Played()
    yield played
    played.close()


@pytest.fixture
def silent() -> Iterator[Silent]:
    """A worker over gRPC that never answers."""
    silent = Silent()
    yield silent
    silent.close()


@pytest.fixture(scope="module")
def hasty(make_server, affine):
    """A worker with little patience."""
    return make_server({"near": affine}, config={"request_timeout_seconds": 1})


@pytest.fixture
def counted(way, hasty, monkeypatch) -> Counted:
    """What is counted: the result, and the bytes of the two bodies."""
    found: Counted = queue.Queue()
    for forwarded in (way.front.forwarded, hasty.front.forwarded):

        def count(protocol: str, result: Result, *, request: int, answer: int, forwarded=forwarded) -> None:
            Forwarded.count(forwarded, protocol, result, request=request, answer=answer)
            found.put((result, request, answer))

        monkeypatch.setattr(forwarded, "count", count)
    return found


@pytest.fixture
def client(way, played) -> Iterator[Wire]:
    way.catalog.table["far"] = Elsewhere((played.endpoint,))
    with Wire(way.http) as client:
        yield client
