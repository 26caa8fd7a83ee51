# SPDX-License-Identifier: Apache-2.0
"""The route table of a pool: which workers hold which models, versioned, sent as deltas."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ballast_contract.v1 import control_pb2 as pb


@dataclass(frozen=True, slots=True)
class Hop:
    """A worker to which a call can be passed on."""

    worker: str
    host: str
    http_port: int
    grpc_port: int


Table = Mapping[str, tuple[Hop, ...]]
"""Model name to the workers that hold it; a model without workers has no entry."""


@dataclass(frozen=True, slots=True)
class Routes:
    """One version of the table. Versions grow within an epoch, and later epochs are above earlier ones."""

    version: int
    table: Table
    _deltas: dict[int, pb.RouteTable] = field(default_factory=dict, compare=False, repr=False)

    def since(self, base: Routes | None) -> pb.RouteTable:
        """The whole table, or what changed since `base`; made once for all workers that hold the same base."""
        key = 0 if base is None else base.version
        if key not in self._deltas:
            old: Table = {} if base is None else base.table
            changed = [
                pb.Route(model=m, workers=map(_endpoint, hops)) for m, hops in self.table.items() if old.get(m) != hops
            ]
            changed += [pb.Route(model=model) for model in old if model not in self.table]
            self._deltas[key] = pb.RouteTable(version=self.version, base_version=key, routes=changed)
        return self._deltas[key]


class RouteBook:
    """Numbers the tables of one pool."""

    def __init__(self) -> None:
        self._current: Routes | None = None

    def update(self, table: Table, *, epoch: int) -> Routes:
        """The table under its version: the same one while it says the same, else the next."""
        floor = epoch << 32
        current = self._current
        if current is None or current.version < floor or current.table != table:
            version = max(floor, 0 if current is None else current.version) + 1
            self._current = current = Routes(version, dict(table))
        return current


def _endpoint(hop: Hop) -> pb.Endpoint:
    return pb.Endpoint(worker=hop.worker, host=hop.host, http_port=hop.http_port, grpc_port=hop.grpc_port)
