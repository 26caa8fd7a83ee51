# SPDX-License-Identifier: Apache-2.0
"""Small builders for what reconciliation plans are made of."""

from __future__ import annotations

import pytest
from helpers.reconcile_objects import Builder


@pytest.fixture
def build() -> Builder:
    """Pods, workers, models and budgets, with as little said as possible."""
    return Builder()
