# SPDX-License-Identifier: Apache-2.0
"""A worker without an operator compacts after so many loads that requests waited for, and tells each time."""

from __future__ import annotations

import logging
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from helpers.small_bundles import pack_small

from ballast_contract.config import WorkerConfig
from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control.chores import Chores
from ballast_worker.residency.demand import Refusal
from ballast_worker.residency.protocol import CompactionMode, CompactionResult

INTERVAL = 3
DONE = CompactionResult(("a",), 12, 4, 8, 0.5, 0.0, 4, 0.1, 0.2)


class Serving:
    """Counts loads as the test says, and compacts when the test says."""

    def __init__(self) -> None:
        self.on_demand_loads = 0
        self.asked: list[tuple[CompactionMode, Callable[[Any], None]]] = []
        self.residency = SimpleNamespace(snapshot=lambda: SimpleNamespace(on_demand_loads=self.on_demand_loads))

    def compact(self, mode: CompactionMode, _: Any, done: Callable[[Any], None]) -> None:
        self.asked.append((mode, done))


@pytest.fixture
def serving():
    return Serving()


@pytest.fixture
def look(serving):
    """One turn of the control loop, with so many loads by now."""
    config = WorkerConfig.model_validate({"backend": "cpu", "compactionInterval": INTERVAL})
    lineup: Any = SimpleNamespace(fresh=False, settled=False)
    workshop: Any = SimpleNamespace()
    chores = Chores(config, lineup, workshop)

    def turn(loads: int) -> int:
        serving.on_demand_loads = loads
        chores.do(serving, 0.0)
        return len(serving.asked)

    return turn


def test_the_interval_counts_loads_and_starts_anew_with_the_end_of_each_compaction(serving, look):
    assert [look(loads) for loads in (0, 1, INTERVAL - 1)] == [0, 0, 0]
    assert look(INTERVAL) == 1
    assert [look(loads) for loads in (INTERVAL, 2 * INTERVAL, 3 * INTERVAL)] == [1, 1, 1]  # it still runs
    serving.asked[0][1](DONE)
    ended = 3 * INTERVAL  # what came meanwhile, and what it brought back itself, does not ask for another
    assert [look(loads) for loads in (ended, ended, ended + INTERVAL - 1)] == [1, 1, 1]
    assert look(ended + INTERVAL) == 2
    assert {mode for mode, _ in serving.asked} == {CompactionMode.MOVE}


def test_each_compaction_leaves_a_line_with_the_figures_before_and_after(serving, look, caplog):
    look(INTERVAL)
    serving.asked[0][1](DONE)
    with caplog.at_level(logging.INFO):
        look(INTERVAL)
    [line] = [record for record in caplog.records if record.event == "memory.compacted"]
    assert (line.largest_free_before, line.largest_free_after) == (4, 8)
    assert (line.fragmentation_before, line.fragmentation_after) == (0.5, 0.0)
    assert (line.moved_bytes, line.reloaded) == (4, ["a"])


def test_a_compaction_that_was_refused_says_why(serving, look, caplog):
    look(INTERVAL)
    serving.asked[0][1](Refusal(Reason.BUSY, "a compaction is running already"))
    look(INTERVAL)
    [line] = [record for record in caplog.records if record.event == "memory.compaction_refused"]
    assert "a compaction is running already" in line.getMessage()


@pytest.mark.parametrize("allocator", ["arena", "bfc"])
def test_only_loads_that_requests_waited_for_count(config_for, start, tmp_path, allocator):
    """Under `bfc` a compaction brings every model back: it must not ask for the next one."""
    bundles = [pack_small(tmp_path / name, mebibytes=4, max_batch=1, name=name) for name in "abcd"]
    models = [{"name": b.manifest.name, "uri": f"file://{b.path}"} for b in bundles]
    budget = {"arena": "16m", "bfc": "160m"}[allocator]
    worker = start(config_for(models=models, device={"budget": budget, "allocator": allocator}))
    worker.until(lambda state: sum(m.phase == pb.MODEL_PHASE_LOADED for m in state.models) >= 3)
    residency = worker.worker.parts.residency
    assert residency.snapshot().loads >= 3
    assert residency.snapshot().on_demand_loads == 0
    swapped = next((m.name for m in worker.state().models if m.phase != pb.MODEL_PHASE_LOADED), None)
    if allocator == "arena":
        worker.infer(swapped)
        assert residency.snapshot().on_demand_loads == 1
    before = residency.snapshot()
    worker.control.CompactMemory(pb.CompactMemoryRequest(mode=pb.COMPACTION_MODE_MOVE))
    after = residency.snapshot()
    assert after.compactions == before.compactions + 1
    assert after.on_demand_loads == before.on_demand_loads
    assert (after.loads > before.loads) == (allocator == "bfc")
