# SPDX-License-Identifier: Apache-2.0
"""All simulated workers in a process of their own, which is told what to do line by line, as JSON.

The first line names the workers and what they listen with; each line after it moves one model. Each is answered by a
line: the first when all listen, the others with the monotonic second of the move.
"""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import grpc

from ballast_contract import names
from ballast_contract.v1 import control_pb2 as pb
from ballast_contract.v1 import control_pb2_grpc
from benchmarks.operator.worker import SimulatedWorker

_TIERS = {"host": pb.TIER_HOST, "device": pb.TIER_DEVICE}


@dataclass(frozen=True)
class Certificate:
    """What workers of a namespace identify themselves with, PEM."""

    authority: str
    certificate: str
    key: str


class Workers:
    """The handle of the benchmark on the process."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @classmethod
    async def start(cls, addresses: Mapping[str, str], certificate: Certificate | None) -> Workers:
        """Start one worker for each pod name, listening at its address."""
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "benchmarks.operator.workers",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.PIPE,
            limit=1 << 22,
        )
        found = cls(process)
        await found._ask({"addresses": dict(addresses), "certificate": certificate and vars(certificate)})
        return found

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    async def pinned(self) -> list[tuple[str, str]]:
        """Worker and name of every model that is to stay on the device."""
        return [(worker, model) for worker, model in await self._ask({"pinned": True})]

    async def move(self, worker: str, model: str, tier: str) -> float:
        """Move a model to tier `host` or `device`; returns when, in monotonic seconds."""
        return float(await self._ask({"worker": worker, "model": model, "tier": tier}))

    async def stop(self) -> None:
        """End the process."""
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()

    async def _ask(self, question: Any) -> Any:
        if self._process.stdin is None or self._process.stdout is None:
            raise RuntimeError("the process of the simulated workers has no pipes")
        self._process.stdin.write(json.dumps(question).encode() + b"\n")
        await self._process.stdin.drain()
        answer = await self._process.stdout.readline()
        if not answer:
            raise RuntimeError(f"the process of the simulated workers ended with {await self._process.wait()}")
        return json.loads(answer)


async def _listen(addresses: Mapping[str, str], certificate: Certificate | None) -> dict[str, SimulatedWorker]:
    credentials = None
    if certificate is not None:
        credentials = grpc.ssl_server_credentials(
            [(certificate.key.encode(), certificate.certificate.encode())],
            root_certificates=certificate.authority.encode(),
            require_client_auth=True,
        )
    found = {}
    for name, address in addresses.items():
        worker = found[name] = SimulatedWorker(name)
        server = grpc.aio.server(options=[("grpc.so_reuseport", 0), ("grpc.max_receive_message_length", 64 << 20)])
        control_pb2_grpc.add_ControlServicer_to_server(worker, server)  # type: ignore[no-untyped-call]
        place = f"{address}:{names.CONTROL_PORT}"
        if credentials is None:
            server.add_insecure_port(place)
        else:
            server.add_secure_port(place, credentials)
        await server.start()
        _SERVERS.append(server)
    return found


_SERVERS: list[grpc.aio.Server] = []
"""Kept: a server that nobody refers to stops."""


async def _serve() -> None:
    lines: asyncio.StreamReader = asyncio.StreamReader(limit=1 << 22)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin)
    first = json.loads(await lines.readline())
    certificate = Certificate(**first["certificate"]) if first["certificate"] else None
    workers = await _listen(first["addresses"], certificate)
    _answer(len(workers))
    while line := await lines.readline():
        question = json.loads(line)
        if "tier" in question:
            _answer(workers[question["worker"]].move(question["model"], _TIERS[question["tier"]]))
        else:
            _answer([(name, model) for name, worker in workers.items() for model in worker.pinned()])


def _answer(value: float | Sequence[tuple[str, str]]) -> None:
    print(json.dumps(value), flush=True)


if __name__ == "__main__":
    asyncio.run(_serve())
