# SPDX-License-Identifier: Apache-2.0
"""The API client against a server that misbehaves on purpose."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest
from aiohttp import web
from kubernetes.aio.client import Configuration
from prometheus_client import CollectorRegistry

from ballast_operator.cluster import errors
from ballast_operator.cluster.access import Access
from ballast_operator.cluster.client import Client
from ballast_operator.cluster.limiter import TokenBucket
from ballast_operator.cluster.metrics import ClusterMetrics
from ballast_operator.cluster.resources import BUDGETS, PODS


class Server:
    """Answers from a list; keeps what it was asked."""

    def __init__(self) -> None:
        self.answers: list[tuple[int, Any, dict[str, str]]] = []
        self.requests: list[tuple[str, str, dict[str, str], str, str]] = []
        self.pauses: list[float] = []

    def answer(self, status: int, body: Any = None, **headers: str) -> None:
        self.answers.append(
            (status, {} if body is None else body, {k.replace("_", "-"): v for k, v in headers.items()})
        )

    async def handle(self, request: web.Request) -> web.StreamResponse:
        text = await request.text()
        self.requests.append(
            (request.method, request.path, dict(request.query), request.headers.get("Content-Type", ""), text)
        )
        status, body, headers = self.answers.pop(0)
        if status == 0:
            request.transport.abort()
        return web.json_response(body, status=status or 200, headers=headers)


@pytest.fixture
async def server() -> AsyncIterator[Server]:
    found = Server()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", found.handle)
    runner = web.AppRunner(app)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    found.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield found
    await runner.cleanup()


@pytest.fixture
async def client(server: Server) -> AsyncIterator[Client]:
    async def sleep(seconds: float) -> None:
        server.pauses.append(seconds)

    configuration = Configuration(host=server.url)
    writes = TokenBucket(rate=1000, burst=1000, clock=time.monotonic)
    registry = CollectorRegistry()
    found = Client(
        Access(configuration, in_cluster=False),
        metrics=ClusterMetrics(registry),
        writes=writes,
        timeout=5,
        sleep=sleep,
    )
    found.registry = registry
    yield found
    await found.close()


def status(code: int, reason: str, message: str) -> dict:
    return {"kind": "Status", "code": code, "reason": reason, "message": message}


@pytest.mark.parametrize(
    ("code", "reason", "kind"),
    [
        (404, "NotFound", errors.NotFound),
        (409, "Conflict", errors.Conflict),
        (409, "AlreadyExists", errors.AlreadyExists),
        (410, "Expired", errors.Gone),
        (422, "Invalid", errors.Invalid),
        (403, "Forbidden", errors.Forbidden),
        (401, "Unauthorized", errors.Unauthorized),
    ],
)
async def test_a_refusal_becomes_an_error_with_the_server_s_message(client, server, code, reason, kind):
    server.answer(code, status(code, reason, f"{reason}: budget 'x' is wrong"))
    with pytest.raises(kind, match=f"{reason}: budget 'x' is wrong") as caught:
        await client.get(BUDGETS, "ns", "x")
    assert (caught.value.status, caught.value.reason) == (code, reason)
    assert caught.value.message == f"{reason}: budget 'x' is wrong"


async def test_reads_are_repeated_after_an_error_of_the_server_and_after_no_answer(client, server):
    server.answer(0)
    server.answer(0)  # the HTTP client repeats a read once by itself
    server.answer(503, status(503, "ServiceUnavailable", "later"))
    server.answer(200, {"metadata": {"name": "x"}})
    assert (await client.get(BUDGETS, "ns", "x"))["metadata"]["name"] == "x"
    assert 0.1 <= server.pauses[0] <= 0.125
    assert 0.4 <= server.pauses[1] <= 0.5


async def test_a_create_whose_answer_was_lost_is_not_repeated(client, server):
    server.answer(0)
    with pytest.raises(errors.Unavailable):
        await client.create(PODS, {"metadata": {"namespace": "ns", "name": "x"}})
    assert len(server.requests) == 1


async def test_a_create_that_was_turned_away_for_load_is_repeated_when_the_server_says(client, server):
    server.answer(429, status(429, "TooManyRequests", "busy"), Retry_After="3")
    server.answer(201, {"metadata": {"name": "x"}})
    await client.create(PODS, {"metadata": {"namespace": "ns", "name": "x"}})
    assert 3 <= server.pauses[0] <= 3.75


async def test_no_write_is_sent_once_another_may_lead_and_reads_go_on(client, server):
    leads = [True, False]
    client._may_write = lambda: leads.pop(0)
    server.answer(503, status(503, "ServiceUnavailable", "later"))
    with pytest.raises(errors.Fenced, match="the Lease has run out"):  # also when it ran out between two attempts
        await client.apply(PODS, {"metadata": {"namespace": "ns", "name": "x"}})
    assert len(server.requests) == 1
    server.answer(200, {"metadata": {"name": "x"}})
    assert await client.get(PODS, "ns", "x")


async def test_repeating_ends_with_the_last_error(client, server):
    for _ in range(4):
        server.answer(500, status(500, "InternalError", "etcd has no leader"))
    with pytest.raises(errors.Unavailable, match="etcd has no leader"):
        await client.list(BUDGETS)
    assert len(server.requests) == 4


async def test_a_list_is_read_in_chunks_and_its_items_know_their_kind(client, server):
    server.answer(200, {"metadata": {"resourceVersion": "7", "continue": "t"}, "items": [{"metadata": {"name": "a"}}]})
    server.answer(200, {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "b"}}]})
    listing = await client.list(PODS, "ns", labels="a=b")
    assert [item["metadata"]["name"] for item in listing.items] == ["a", "b"]
    assert listing.items[0]["kind"] == "Pod"
    assert listing.resource_version == "7"
    assert server.requests[0][2] == {"limit": "500", "labelSelector": "a=b"}
    assert server.requests[1][2]["continue"] == "t"


async def test_a_list_whose_token_ran_out_starts_over(client, server):
    page = {"metadata": {"resourceVersion": "7", "continue": "t"}, "items": [{"metadata": {"name": "a"}}]}
    server.answer(200, page)
    server.answer(410, status(410, "Expired", "the token is too old"))
    server.answer(200, {"metadata": {"resourceVersion": "9"}, "items": [{"metadata": {"name": "b"}}]})
    listing = await client.list(PODS)
    assert [item["metadata"]["name"] for item in listing.items] == ["b"]


async def test_a_status_is_applied_by_its_manager_and_loses_only_what_an_older_definition_lacks(client, server):
    server.answer(200, {})
    body = {"metadata": {"namespace": "ns", "name": "x", "uid": "u"}, "status": {}}
    await client.apply_status(BUDGETS, body, manager="m")
    method, path, query, content, text = server.requests[0]
    assert (method, path) == ("PATCH", "/apis/ballast.dev/v1alpha1/namespaces/ns/weightbudgets/x/status")
    assert query == {"fieldManager": "m", "force": "true", "fieldValidation": "Ignore"}
    assert content == "application/apply-patch+yaml"
    assert '"kind": "WeightBudget"' in text


async def test_a_deletion_is_of_this_very_object_and_of_one_that_is_gone_it_is_no_error(client, server):
    server.answer(404, status(404, "NotFound", "gone"))
    await client.delete(PODS, "ns", "x", uid="u", grace_seconds=5)
    text = server.requests[0][4]
    assert '"preconditions": {"uid": "u"}' in text
    assert '"gracePeriodSeconds": 5' in text


async def test_a_deletion_is_refused_where_this_very_object_stays_and_a_conflict_where_another_took_its_name(
    client, server
):
    denied = status(409, "Conflict", "admission webhook denied the request")
    for uid, kind in (("u", errors.Refused), ("other", errors.Conflict)):
        server.answer(409, denied)
        server.answer(200, {"metadata": {"uid": uid}})
        with pytest.raises(kind, match="denied the request"):
            await client.delete(PODS, "ns", "x", uid="u")
    server.answer(409, denied)
    server.answer(404, status(404, "NotFound", "gone"))
    await client.delete(PODS, "ns", "x", uid="u")


async def test_an_answer_that_is_no_json_is_shown_as_it_is(client, server):
    server.answer(418, "short and stout")
    with pytest.raises(errors.ApiError, match="short and stout"):
        await client.get(PODS, "ns", "x")


async def test_calls_are_measured_by_verb_resource_and_code(client, server):
    server.answer(404, status(404, "NotFound", "gone"))
    with pytest.raises(errors.NotFound):
        await client.get(PODS, "ns", "x")
    labels = {"verb": "get", "resource": "pods", "code": "404"}
    found: Callable[..., float | None] = client.registry.get_sample_value
    assert found("ballast_operator_api_request_seconds_count", labels) == 1


async def test_nobody_listening_is_told_apart_from_a_refusal(server):
    configuration = Configuration(host="http://127.0.0.1:1")
    writes = TokenBucket(rate=1000, burst=1000, clock=time.monotonic)

    async def sleep(_: float) -> None:
        return

    client = Client(
        Access(configuration, in_cluster=False), metrics=ClusterMetrics(CollectorRegistry()), writes=writes, sleep=sleep
    )
    try:
        with pytest.raises(errors.Unavailable) as caught:
            await client.get(PODS, "ns", "x")
        assert caught.value.status == 0
    finally:
        await client.close()
