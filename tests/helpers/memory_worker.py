# SPDX-License-Identifier: Apache-2.0
"""Workers without sockets: a channel that calls a worker's control service in the same loop, or fails as told."""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from helpers.fake_worker import FakeWorker

from ballast_contract.v1 import control_pb2 as pb


class MemoryWorker(FakeWorker):
    """A worker with two faces: what the operator hears of it, and whether calls of models are answered.

    `up`: the process runs and answers calls. `reachable`: the control channel gets through.
    """

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.up = True
        self.reachable = True

    def answers(self, served: str) -> bool:
        """Whether a call of the model would be answered now."""
        state = self.models.get(served)
        return self.up and state is not None and state.phase in (pb.MODEL_PHASE_PREPARED, pb.MODEL_PHASE_LOADED)

    def crash(self) -> None:
        """The process ends; what it had loaded is gone."""
        self.up = False
        self.models.clear()

    def come_back(self) -> None:
        """Another process that knows nothing yet."""
        self.up = True
        self.restart()
        self.generation = 0


class MemoryChannel:
    """What a stub needs of a channel."""

    def __init__(self, worker: MemoryWorker | None) -> None:
        self._worker = worker

    def unary_unary(self, path: str, *_: Any, **__: Any) -> Any:
        method = path.rpartition("/")[2]

        async def call(request: Any, timeout: float) -> Any:  # noqa: ASYNC109 - gRPC's own
            async with _deadline(timeout):
                worker = await self._through()
                answer = await getattr(worker, method)(request, _Context())
                await self._through()
                return answer

        return call

    def unary_stream(self, path: str, *_: Any, **__: Any) -> Any:
        return lambda request: _Stream(self, request)

    async def close(self, grace: float | None = None) -> None:
        del grace

    async def _through(self) -> MemoryWorker:
        """The worker, if it runs; waits for ever where packets are lost."""
        if self._worker is None or not self._worker.up:
            raise _error(grpc.StatusCode.UNAVAILABLE, "connection refused")
        while not self._worker.reachable:  # noqa: ASYNC110 - the test turns it
            await asyncio.sleep(0.5)
        return self._worker


class _Stream:
    """One Watch: ends when the process does, stands still while it cannot be reached."""

    def __init__(self, channel: MemoryChannel, request: pb.WatchRequest) -> None:
        self._channel, self._request = channel, request
        self._messages: Any = None
        self._instance = ""

    async def read(self) -> Any:
        worker = await self._channel._through()
        if self._messages is None:
            self._instance, self._messages = worker.instance, worker.Watch(self._request, None)
        while True:
            message = await anext(self._messages)
            worker = await self._channel._through()
            if worker.instance != self._instance:
                raise _error(grpc.StatusCode.UNAVAILABLE, "connection reset")
            return message

    def cancel(self) -> None:
        self._messages = None


class _Context:
    def __init__(self) -> None:
        self._trailing: Any = ()

    def set_trailing_metadata(self, metadata: Any) -> None:
        self._trailing = metadata

    async def abort(self, code: grpc.StatusCode, details: str) -> None:
        raise grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(*self._trailing), details=details)


class _deadline:  # noqa: N801 - used as a function
    def __init__(self, seconds: float) -> None:
        self._timeout = asyncio.timeout(seconds)

    async def __aenter__(self) -> None:
        await self._timeout.__aenter__()

    async def __aexit__(self, *error: object) -> None:
        try:
            await self._timeout.__aexit__(*error)
        except TimeoutError as late:
            raise _error(grpc.StatusCode.DEADLINE_EXCEEDED, "Deadline Exceeded") from late


def _error(code: grpc.StatusCode, details: str) -> grpc.aio.AioRpcError:
    return grpc.aio.AioRpcError(code, grpc.aio.Metadata(), grpc.aio.Metadata(), details=details)
