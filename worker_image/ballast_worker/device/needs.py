# SPDX-License-Identifier: Apache-2.0
"""The arithmetic of the plan: what weights, scratch and shares need of a budget. Pure, exact integers."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Needs:
    """What must fit into the budget; bytes and whole percentages.

    Attributes:
        fixed: context and code; usable memory is the budget without them.
        scratch: the XLA pool.
        declared: the least that generative bundles can work with.
        pinned: weights of all pinned models.
        largest: weights of the largest on-demand model.
        max_percent: the most of usable memory that weights may take.
        slack_percent: the part of usable memory that is kept free.
    """

    fixed: int
    scratch: int
    declared: int
    pinned: int
    largest: int
    max_percent: int
    slack_percent: int

    @property
    def weights(self) -> int:
        """The least weights that must be held at once."""
        return self.pinned + self.largest

    @property
    def everything(self) -> int:
        """The least of usable memory that is taken, without any slack."""
        return self.weights + self.scratch + self.declared

    @property
    def minimum(self) -> int:
        """The smallest budget that fits.

        Whole bytes: floor(usable * p / 100) >= x exactly when usable >= ceil(100 * x / p).
        """
        return self.fixed + max(
            ceil_div(100 * self.weights, self.max_percent), ceil_div(100 * self.everything, 100 - self.slack_percent)
        )

    def usable(self, budget: int) -> int:
        """Bytes of a budget that weights, scratch and slack share."""
        return max(0, budget - self.fixed)

    def within_max(self, budget: int) -> bool:
        """Whether the weights stay under their share."""
        return self.usable(budget) * self.max_percent // 100 >= self.weights

    def within_slack(self, budget: int) -> bool:
        """Whether the slack stays free."""
        return self.usable(budget) * (100 - self.slack_percent) // 100 >= self.everything


def ceil_div(numerator: int, denominator: int) -> int:
    """The quotient rounded up."""
    return -(-numerator // denominator)
