# SPDX-License-Identifier: Apache-2.0
"""The benchmark's traces, shorter: what packing is for holds on them."""

from __future__ import annotations

import pytest

from benchmarks import placement


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_against_the_plain_rule_the_busiest_worker_has_less_on_each_trace_and_calls_wait_for_fewer_reloads(seed):
    found = placement.outcomes(seed, requests=20_000, policies=("ballast", "plain_lpt")).values()
    for trace in found:
        assert trace["ballast"].max_load < trace["plain_lpt"].max_load
        assert trace["ballast"].bytes_moved < trace["plain_lpt"].bytes_moved
        assert not trace["ballast"].refused
    ours, plain = (sum(trace[name].reload_seconds for trace in found) for name in ("ballast", "plain_lpt"))
    assert ours < plain
