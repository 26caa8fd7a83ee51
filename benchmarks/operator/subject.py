# SPDX-License-Identifier: Apache-2.0
"""The operator under measurement: a process of its own, looked at from outside."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import aiohttp
from prometheus_client.parser import text_string_to_metric_families

from ballast_operator.edge.arguments import PREFIX
from benchmarks.operator.ground import free_port

R = TypeVar("R")

_WRITES: Final = frozenset({"apply", "create", "patch", "update", "delete"})
_OWN: Final = frozenset({"leases", "selfsubjectaccessreviews"})

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


@dataclass(frozen=True)
class Scrape:
    """The metrics of one moment."""

    samples: Samples

    def value(self, name: str, **labels: str) -> float:
        """The sum of a metric's series that carry these labels."""
        wanted = labels.items()
        return sum(value for (found, held), value in self.samples.items() if found == name and wanted <= held)

    def writes(self) -> Counter[str]:
        """Calls that change something, by verb and resource; the Lease and questions about rights left out."""
        found: Counter[str] = Counter()
        for (name, labels), value in self.samples.items():
            if name == "ballast_operator_api_request_seconds_count":
                said = dict(labels)
                if said["verb"] in _WRITES and said["resource"] not in _OWN:
                    found[f"{said['verb']} {said['resource']}"] += int(value)
        return found


class Subject:
    """One run of `ballast-operator run`."""

    def __init__(self, process: asyncio.subprocess.Process, port: int) -> None:
        self._process = process
        self._url = f"http://127.0.0.1:{port}/metrics"
        self.started = time.monotonic()

    @classmethod
    async def start(cls, kubeconfig: Path, namespace: str, log: Path) -> Subject:
        """Start the operator for one namespace."""
        port = free_port()
        argv = ["run", "--kubeconfig", str(kubeconfig), "--namespace", namespace, "--lease-namespace", namespace]
        argv += ["--host", "127.0.0.1", "--port", str(port)]
        images = {f"{PREFIX}{whose}_IMAGE": f"benchmark.example/{whose.lower()}:1" for whose in ("WORKER", "OPERATOR")}
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "ballast_operator.edge.main",
                *argv,
                stdout=output,
                stderr=output,
                env=os.environ | images,
            )
        return cls(process, port)

    @property
    def pid(self) -> int:
        """The process."""
        return self._process.pid

    async def scrape(self) -> Scrape | None:
        """Its metrics; None while it does not answer."""
        if self._process.returncode is not None:
            raise RuntimeError(f"the operator ended with {self._process.returncode}")
        try:
            async with aiohttp.ClientSession() as session, session.get(self._url) as answer:
                text = await answer.text()
        except aiohttp.ClientError:
            return None
        return Scrape(
            {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in text_string_to_metric_families(text)
                for sample in family.samples
            }
        )

    async def outlive(self, work: Awaitable[R]) -> R:
        """Wait for something that the operator brings about. Raises RuntimeError when it ends before."""
        waiting, ended = asyncio.ensure_future(work), asyncio.create_task(self._process.wait())
        try:
            await asyncio.wait((waiting, ended), return_when=asyncio.FIRST_COMPLETED)
            if not waiting.done():
                raise RuntimeError(f"the operator ended with {self._process.returncode}")
            return waiting.result()
        finally:
            waiting.cancel()
            ended.cancel()

    async def stop(self) -> None:
        """End it as Kubernetes would, and wait."""
        if self._process.returncode is None:
            self._process.terminate()
        await self._process.wait()

    def memory_mebibytes(self, field: str = "VmRSS") -> float:
        """Resident memory now, or with `VmHWM` at its highest."""
        for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1]) / 1024
        return 0.0
