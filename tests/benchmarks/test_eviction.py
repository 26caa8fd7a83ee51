# SPDX-License-Identifier: Apache-2.0
"""The search against brute force, and the benchmark at a few cases; no figure of time is looked at."""

from __future__ import annotations

import argparse

from ballast_worker.residency.admission import Evict, Excluded, Resident, free_bytes
from benchmarks import eviction


def test_brute_force_finds_the_cheapest_set():
    def resident(name, nbytes, key):
        return Resident(name, name, nbytes, key, queued=False, excluded=Excluded.NOT)

    # Costs relative to the most valuable: 4 x 1/4, 3 x 1/2, 6 x 1.
    candidates = [resident("a", 4, -2.0), resident("b", 3, -1.0), resident("c", 6, 0.0)]
    assert eviction.cheapest_cost(candidates, 4) == 1.0
    assert eviction.cheapest_cost(candidates, 5) == 2.5
    assert eviction.cheapest_cost(candidates, 10) == 7.0


def test_the_search_stays_within_5_percent_of_brute_force():
    for seed in range(40):
        for candidates in (eviction.residents(seed, 12), eviction.hard_cases(seed)):
            assert eviction.cost_ratio(candidates, eviction.shortfall(seed, candidates)) <= 1.05


def test_the_books_of_the_benchmark_are_the_workers_own():
    candidates = eviction.residents(1, 20)
    needed = eviction.shortfall(1, candidates)
    residents = eviction.board(candidates).residents()
    assert {r.extent for r in residents} == {c.extent for c in candidates}
    assert isinstance(free_bytes(residents, needed), Evict)


def test_the_benchmark_reports_every_size_and_the_ratio(monkeypatch):
    monkeypatch.setattr(eviction, "RESIDENTS", (8, 64))
    figures = eviction.measure(argparse.Namespace(cases=20))
    assert set(figures["search_microseconds"]) == set(figures["decision_microseconds"]) == {"8", "64"}
    assert figures["worst_cost_ratio_at_12"] <= 1.05
