# SPDX-License-Identifier: Apache-2.0
"""The churn at a few hundred loads: nothing fails and nothing grows, and the control arm shows that it could."""

from __future__ import annotations

import pytest

from benchmarks import churn


@pytest.mark.parametrize("allocator", ["arena", "bfc"])
def test_no_allocation_fails_and_nothing_grows_while_the_control_arm_fails(allocator):
    figures = churn.churn(allocator, 150)
    assert figures["loads"] >= 150
    assert (figures["failed_allocations"], figures["growth_bytes"]) == (0, 0)
    assert figures["control_failed_allocations"] > 0
    assert figures["catalogue_bytes"] >= 3 * figures["device_bytes"]
