# SPDX-License-Identifier: Apache-2.0
"""The seam between the protocols and control: which models clients may call, and where they are answered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from ballast_worker.bundle.manifest import Manifest
from ballast_worker.residency.demand import Refusal


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Another worker of the pool, as this one reaches it."""

    host: str
    http_port: int
    grpc_port: int


@dataclass(frozen=True, slots=True)
class Here:
    """A model of this worker: a call would be answered, where its weights are not on the device after a load.

    Attributes:
        manifest: of the bundle that serves now; the same object as long as the bundle is the same.
    """

    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """A model that other workers of the pool hold.

    Attributes:
        endpoints: where calls go, best first; empty while none is known, which is answered with "try again".
    """

    endpoints: Sequence[Endpoint]


class Catalog(Protocol):
    """What clients may call. Every method is called on the protocol thread, for each request: O(1), no locks held long."""

    def find(self, model: str) -> Here | Elsewhere | Refusal | None:
        """The model of this name.

        Returns:
            Here or Elsewhere; a refusal for a model that exists and cannot be called yet, or any more (being measured,
            its bundle is invalid, quarantined, draining); None when the pool has no such model.
        """
        ...

    def ready(self) -> bool:
        """The plan is accepted: this worker takes calls."""
        ...
