# SPDX-License-Identifier: Apache-2.0
"""What packing is for holds on the benchmark's traces."""

from __future__ import annotations

from benchmarks import placement


def test_on_each_trace_the_busiest_worker_has_less_and_calls_wait_less_for_reloads_than_under_the_plain_rule():
    for found in placement.outcomes(1, policies=("ballast", "plain_lpt")).values():
        ours, plain = found["ballast"], found["plain_lpt"]
        assert ours.max_load < plain.max_load
        assert ours.reload_seconds < plain.reload_seconds
        assert ours.bytes_moved < plain.bytes_moved
        assert not ours.refused
