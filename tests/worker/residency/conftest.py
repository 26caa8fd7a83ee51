# SPDX-License-Identifier: Apache-2.0
"""Residency on a real CPU arena."""

from __future__ import annotations

import pytest
from helpers.residency_rig import Rig


@pytest.fixture
def rig(tmp_path):
    """Makes a rig with room for so many units."""
    made = []

    def make(capacity: int, **options) -> Rig:
        made.append(Rig(tmp_path, capacity, **options))
        return made[-1]

    yield make
    for one in made:
        assert not one.manager._board.leases, "a test left a lease open"
        one.memory.close()
