# SPDX-License-Identifier: Apache-2.0
"""Tests that need an NVIDIA GPU: JAX's pool is kept small before JAX is imported, so that the arena has the rest."""

from __future__ import annotations

import os

import pytest

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "true")
os.environ.setdefault("XLA_PYTHON_CLIENT_MEM_FRACTION", "0.02")


@pytest.fixture(scope="session")
def gpu():
    """The first GPU's facts, read before this process has a context on it; skips where there is none."""
    from ballast_worker.device.backend import DeviceUnavailableError  # noqa: PLC0415
    from ballast_worker.device.probe import describe  # noqa: PLC0415

    try:
        return describe("cuda", 0)
    except DeviceUnavailableError as error:
        pytest.skip(f"no GPU here: {error}")
