# SPDX-License-Identifier: Apache-2.0
"""How this operator was installed: what a spec that leaves something out means here."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from ballast_operator.fleet.view import HEARTBEAT_LIMIT_SECONDS

MAX_MODEL_SERVICES: Final = 1_000
"""Models of a pool that get a Service each; above, the pool keeps only its own address."""

MAX_MODEL_ENDPOINTS: Final = 20_000
"""Endpoints in all EndpointSlices of a pool; above, likewise."""

FIGURES_SECONDS: Final = 15.0
"""Least time between two writes of figures that nobody waits for."""

DRAIN_SECONDS: Final = 5.0
"""How long a worker keeps a model after its endpoint is gone: proxies and clients take a while to notice."""

DELETION_SECONDS: Final = 20.0
"""How long the finalizer of a WeightBudget waits for worker pods to end and for host pools to be removed."""

CERTIFICATE_SECONDS: Final = 60.0
"""Time between two looks at the certificates of the control channel."""


@dataclass(frozen=True, slots=True)
class Options:
    """Settings of the installation.

    `worker_image` is what a WeightBudget without an image runs, `operator_image` the operator's own: it prepares the nodes
    for host pools and removes them, in pods of `namespace`, the operator's own, that are pulled with `pull_secrets` of it.
    """

    worker_image: str
    operator_image: str
    namespace: str
    pull_secrets: tuple[str, ...] = ()
    stale_definitions: tuple[str, ...] = ()
    """Fields of this release that the installed definitions lack."""
    max_model_services: int = MAX_MODEL_SERVICES
    max_model_endpoints: int = MAX_MODEL_ENDPOINTS
    figures_seconds: float = FIGURES_SECONDS
    drain_seconds: float = DRAIN_SECONDS
    deletion_seconds: float = DELETION_SECONDS
    heartbeat_seconds: float = HEARTBEAT_LIMIT_SECONDS
    certificate_seconds: float = CERTIFICATE_SECONDS
