# SPDX-License-Identifier: Apache-2.0
"""An operator in a process of its own, which can be killed and stopped, and reaches workers at addresses of a file.

Run as `python -m helpers.operator_process ADDRESSES COMMAND...`: a JSON object of pod names and loopback ports, then what
`ballast-operator` takes. It says `candidate` when it begins to compete for the Lease.
"""

from __future__ import annotations

import asyncio
import dataclasses
import json
import os
import sys
from pathlib import Path

import grpc
from prometheus_client import CollectorRegistry

from ballast_operator.edge.arguments import parse
from ballast_operator.edge.health import Health
from ballast_operator.edge.main import _lost
from ballast_operator.edge.process import Process
from ballast_operator.fleet.authority import Identity
from ballast_operator.fleet.channel import Member, channel


def main(addresses: Path, command: list[str]) -> None:
    def dial(member: Member, identity: Identity) -> grpc.aio.Channel:
        port = json.loads(addresses.read_text()).get(member.name, 1)
        return channel(dataclasses.replace(member, host="127.0.0.1", port=port), identity)

    async def run() -> None:
        process = Process(
            parse(command, os.environ), registry=CollectorRegistry(), health=Health(), on_lost=_lost, dial=dial
        )
        print("candidate", flush=True)
        await process.run(asyncio.Event())

    asyncio.run(run())


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
