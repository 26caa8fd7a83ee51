# SPDX-License-Identifier: Apache-2.0
"""What the builder process refuses by itself; imports no JAX, so that it can be named before the environment is set."""

from __future__ import annotations


class ProgramTooLargeError(Exception):
    """A compiled program needs more device memory than the builder may take; the message is complete."""
