# SPDX-License-Identifier: Apache-2.0
"""The CPU as a device: an aligned block of host memory with every page present."""

from __future__ import annotations


class CpuBackend:
    """Implements `backend.Backend` on JAX's CPU device."""
