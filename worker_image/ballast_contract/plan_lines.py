# SPDX-License-Identifier: Apache-2.0
"""Names of the lines of a device memory plan: the worker makes it, and the operator reads its capacity from it."""

from __future__ import annotations

from typing import Final

CONTEXT: Final = "context"
CODE: Final = "code"
SCRATCH: Final = "scratch"
PINNED: Final = "pinned weights"
ON_DEMAND: Final = "on-demand weights"
SLACK: Final = "slack"

OF_MODELS: Final = frozenset({CODE, PINNED, ON_DEMAND})
"""Lines that models share; the others are fixed or kept free."""

OF_EVERY_PLAN: Final = frozenset({CONTEXT, CODE, SCRATCH, PINNED, ON_DEMAND, SLACK})
"""Any other line was declared by a bundle."""
