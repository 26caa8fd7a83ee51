# SPDX-License-Identifier: Apache-2.0
"""The one exception of the host pool that is about the pool itself, not about a bundle."""

from __future__ import annotations


class HostPoolError(Exception):
    """The pool's directory cannot be used: whose it is, its mode, its format, or somebody else's damage.

    The message says what, where, and what to do.
    """
