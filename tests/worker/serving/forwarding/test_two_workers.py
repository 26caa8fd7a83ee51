# SPDX-License-Identifier: Apache-2.0
"""Large calls between two real workers."""

from __future__ import annotations

import json
import threading

import numpy as np
import pytest
from helpers.forwarding import chunk, head, in_background, said_error
from helpers.wire import Wire

from ballast_contract.reasons import Reason
from ballast_worker.residency.demand import Refusal
from ballast_worker.serving.catalog import Elsewhere, Endpoint
from ballast_worker.serving.forwarded import Result

X = np.arange(8, dtype=np.float32).reshape(1, 8)


def padded(nbytes: int, **fields: object) -> bytes:
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 8], "data": X[0].tolist()}
    return json.dumps({"inputs": [tensor], **fields}).encode().ljust(nbytes)


@pytest.fixture(scope="module")
def pair(make_server, affine, way):
    """A worker that has `pair`, behind the one that is asked."""
    holder = make_server({"pair": affine})
    way.catalog.table["pair"] = Elsewhere((Endpoint("127.0.0.1", holder.front.ports.http, holder.front.ports.grpc),))
    return holder


@pytest.mark.parametrize("chunked", [False, True], ids=["length", "chunks"])
def test_a_large_call_between_two_workers_is_answered(way, pair, affine, chunked):
    body = padded(3 << 20, id="i" * (1 << 20))
    with Wire(way.http) as client:
        for _ in range(3):
            pieces = [body[start : start + 100_000] for start in range(0, len(body), 100_000)]
            framed = b"".join(map(chunk, pieces)) + b"0\r\n\r\n" if chunked else body
            client.send(head(None if chunked else len(body), path="/v2/models/pair/infer") + framed)
            status, _, answer = client.answer()
            assert status == 200, answer[:1000]
            found = json.loads(answer)
            assert found["id"] == "i" * (1 << 20)
            np.testing.assert_allclose(found["outputs"][0]["data"], affine.expected(X)[0][0], rtol=1e-5, atol=1e-6)


def test_a_worker_that_lost_the_model_does_not_want_the_body(way, pair):
    body = padded(1 << 20)
    way.catalog.table["moved away"] = way.catalog.table["pair"]
    with Wire(way.http) as client:
        for _ in range(2):
            client.send(head(len(body), path="/v2/models/moved%20away/infer") + body)
            assert "on its way" in said_error(client.answer(), 503)


def test_a_large_call_that_waits_for_its_model_is_executed_where_the_model_arrives(make_server, affine, monkeypatch):
    patient = make_server({"here": affine}, patience_seconds=30.0)
    patient.catalog.table["here"] = Refusal(Reason.MEASURING, "being prepared", 5.0)
    looks = threading.Semaphore(0)
    find = patient.catalog.find
    monkeypatch.setattr(patient.catalog, "find", lambda name: (looks.release(), find(name))[1])
    body = padded(8 << 20)
    with Wire(patient.http) as client:
        sender = in_background(lambda: client.send(head(len(body), path="/v2/models/here/infer") + body))
        for _ in range(4):
            assert looks.acquire(timeout=30)
        del patient.catalog.table["here"]
        status, _, answer = client.answer()
        sender.join()
    assert status == 200, answer


def test_what_was_passed_on_is_counted(way, pair, counted):
    body = padded(1 << 20)
    counters = way.front.forwarded
    requests, nbytes = dict(counters.requests), dict(counters.nbytes)
    with Wire(way.http) as client:
        for message in (head(len(body), path="/v2/models/pair/infer") + body, b"GET /v2/models/pair HTTP/1.1\r\n\r\n"):
            client.send(message)
            answer = client.answer()
            assert answer[0] == 200
    assert [counted.get(timeout=10)[0] for _ in range(2)] == [Result.ANSWERED] * 2
    assert counters.requests["http", "answered"] == requests["http", "answered"] + 2
    assert counters.nbytes["http", "request"] == nbytes["http", "request"] + len(body)
    assert counters.nbytes["http", "answer"] > nbytes["http", "answer"] + len(answer[2])
