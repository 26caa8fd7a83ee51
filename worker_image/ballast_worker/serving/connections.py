# SPDX-License-Identifier: Apache-2.0
"""How long a connection of a client lasts.

A Service chooses a worker for each connection, so a client that keeps its connection keeps its worker. Connections end
after a while, in both protocols without losing a call: a client follows a model that has moved, instead of having every
call passed on, and no connection is in use when a worker whose models have moved ends.
"""

from __future__ import annotations

from typing import Final

CONNECTION_SECONDS: Final = 10.0
"""Age at which a client is told to open another connection, give or take a tenth."""

JITTER: Final = 0.1
"""Connections that began together do not end together."""
