# SPDX-License-Identifier: Apache-2.0
"""The open-loop client itself: what it counts as lost, as failed and as late."""

from __future__ import annotations

import asyncio
import json

import pytest

from e2e.load import calls
from e2e.load.calls import CallError, HttpCaller, Lost, Target
from e2e.load.client import Sample, Stream, summary

ROW = [1.0, 2.0]
STREAM = Stream(Target("127.0.0.1", "m"), "http", 2.0)


def answer(body: bytes, *, status: int = 200, close: bool = False) -> bytes:
    connection = "Connection: close\r\n" if close else ""
    return f"HTTP/1.1 {status} X\r\nContent-Length: {len(body)}\r\n{connection}\r\n".encode() + body


RESULT = json.dumps({"outputs": [{"data": [2.0, 4.0]}]}).encode()


class Server:
    """Answers each request with the next of some answers; None: it closes instead."""

    def __init__(self, answers: list[bytes | None]) -> None:
        self.answers = answers
        self.connections = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while self.answers:
                head = await reader.readuntil(b"\r\n\r\n")
                await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split(b"\r\n")[0]))
                said = self.answers.pop(0)
                if said is None:
                    break
                writer.write(said)
        except EOFError:
            pass
        writer.close()
        await writer.wait_closed()


@pytest.fixture
async def start(monkeypatch):
    servers = []

    async def run(*answers: bytes | None, port: int = 0) -> Server:
        server = Server(list(answers))
        listening = await asyncio.start_server(server.serve, "127.0.0.1", port)
        servers.append(listening)
        monkeypatch.setattr(calls, "HTTP_PORT", listening.sockets[0].getsockname()[1])
        return server

    yield run
    for listening in servers:
        listening.close()
        await listening.wait_closed()


async def test_a_connection_is_kept_until_the_server_says_that_it_ends(start):
    server = await start(answer(RESULT), answer(RESULT, close=True), answer(RESULT))
    caller = HttpCaller(STREAM.target)
    for _ in range(3):
        assert await caller.call(ROW) == [2.0, 4.0]
    assert server.connections == 2
    await caller.close()


async def test_a_call_whose_connection_ends_before_its_answer_is_lost(start):
    await start(answer(RESULT), None)
    caller = HttpCaller(STREAM.target)
    await caller.call(ROW)
    with pytest.raises(Lost):
        await caller.call(ROW)
    await caller.close()


async def test_an_answer_that_is_no_result_is_a_failure_and_nothing_lost(start):
    await start(answer(b"try again", status=503))
    caller = HttpCaller(STREAM.target)
    with pytest.raises(CallError, match="503: try again") as caught:
        await caller.call(ROW)
    assert not isinstance(caught.value, Lost)
    await caller.close()


async def test_a_call_that_cannot_be_sent_yet_is_sent_when_somebody_listens(start, monkeypatch):
    listening = await asyncio.start_server(lambda *_: None, "127.0.0.1", 0)
    port = listening.sockets[0].getsockname()[1]
    listening.close()
    await listening.wait_closed()
    monkeypatch.setattr(calls, "HTTP_PORT", port)
    caller = HttpCaller(STREAM.target)
    waiting = asyncio.create_task(caller.call(ROW))
    await asyncio.sleep(0)
    await start(answer(RESULT), port=port)
    assert await waiting == [2.0, 4.0]
    await caller.close()


def test_figures_are_of_each_phase_and_count_from_when_calls_were_due():
    samples = [Sample(STREAM, "one", 0.001 * n, 0.001 * n + 0.001 * (n + 1)) for n in range(100)]
    samples.append(Sample(STREAM, "two", 1.0, 9.0, "503"))
    found = summary(samples)
    assert list(found) == ["one", "two"]
    assert found["one"] == {"calls": 100, "failed": 0, "p50_ms": 50.0, "p99_ms": 99.0, "max_ms": 100.0}
    assert found["two"] == {"calls": 1, "failed": 1}
