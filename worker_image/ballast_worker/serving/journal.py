# SPDX-License-Identifier: Apache-2.0
"""The seam to the culprit journal: what runs on the device right now, written where a crash cannot lose it."""

from __future__ import annotations

from typing import Protocol

from ballast_worker.build.builder import Dimensions


class Journal(Protocol):
    """Called on the device thread around each dispatch; cheap, and never raises."""

    def begin(self, model: str, program: Dimensions) -> None:
        """An execution is about to be enqueued. Up to the engine's depth may be under way at once."""
        ...

    def end(self, model: str, program: Dimensions) -> None:
        """The host has seen the end of that execution."""
        ...


class NoJournal:
    """For a worker that keeps no journal."""

    def begin(self, model: str, program: Dimensions) -> None:
        """Nothing."""

    def end(self, model: str, program: Dimensions) -> None:
        """Nothing."""
