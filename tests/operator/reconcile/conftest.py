# SPDX-License-Identifier: Apache-2.0
"""Small builders for what reconciliation plans are made of, and a cluster in memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from helpers.memory_scene import Scene
from helpers.reconcile_objects import Builder


@pytest.fixture
def build() -> Builder:
    """Pods, workers, models and budgets, with as little said as possible."""
    return Builder()


@pytest.fixture
def scene() -> Iterator[Scene]:
    """A cluster in memory, on a clock that only the test moves."""
    scene = Scene()
    yield scene
    scene.end()
