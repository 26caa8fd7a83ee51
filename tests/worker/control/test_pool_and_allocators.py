# SPDX-License-Identifier: Apache-2.0
"""XLA's pool in the plan, a trial run before Ready, and a whole worker whose weights lie in that pool."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from helpers.running_worker import CALLABLE, assigned
from helpers.small_bundles import pack_small
from hypothesis import given
from hypothesis import strategies as st

from ballast_contract.config import WorkerConfig
from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.build.builder import BuiltProgram
from ballast_worker.control.models import Built
from ballast_worker.control.planning import POOL_MARGIN, Basis
from ballast_worker.device.bfc_memory import BfcMemory
from ballast_worker.device.bfc_replay import BfcReplay
from ballast_worker.device.budget import Budget
from ballast_worker.serving.executable import LoadedProgram

MIB = 1 << 20


def basis(backend: str, allocator: str = "arena") -> Basis:
    config = WorkerConfig.model_validate({"backend": backend, "device": {"allocator": allocator}})
    return Basis(config, Budget(1 << 30, "a test", "1Gi"), 0, 0)


def built(bundle, *scratch: int) -> Built:
    """Programs of batches 1, 2, ... with so much scratch each; rows are 16 bytes in and 16 out."""
    programs = tuple(
        BuiltProgram((("batch", rows),), Path("x"), "", nbytes, 32 * rows, 0, 0.0)
        for rows, nbytes in enumerate(scratch, start=1)
    )
    return Built(bundle, programs, 0)


@given(scratch=st.lists(st.integers(0, 400 * MIB), min_size=1, max_size=3))
def test_the_pool_is_the_smallest_that_runs_every_program_in_the_replay_and_a_margin(small_bundle, scratch):
    pool = basis("cuda").scratch_need([built(small_bundle, *scratch)]) - POOL_MARGIN

    def runs(nbytes: int) -> bool:
        for rows, need in enumerate(scratch, start=1):
            for order in ([16 * rows, 16 * rows, need], [16 * rows, need, 16 * rows]):
                if BfcReplay(nbytes).allocate_all([size for size in order if size]) is None:
                    return False
        return True

    assert runs(pool)
    assert not runs(pool - 256)


def test_on_the_cpu_scratch_is_counted_and_no_pool_is_replayed(small_bundle):
    assert basis("cpu").scratch_need([built(small_bundle, 1000, 5 * MIB)]) == 5 * MIB + 64
    assert basis("cpu", "bfc").scratch_need([built(small_bundle, 1000)]) > POOL_MARGIN
    assert basis("cuda").scratch_need([]) == 0


def test_a_program_that_fails_its_trial_run_refuses_its_model_and_the_worker_serves_the_others(
    config_for, start, small_bundle, tmp_path, monkeypatch
):
    plain = LoadedProgram.run_on_zeros

    def fails(self, weights):
        if any(array.nbytes > MIB for array in weights):
            raise RuntimeError("RESOURCE_EXHAUSTED: as the pool might say")
        plain(self, weights)

    monkeypatch.setattr(LoadedProgram, "run_on_zeros", fails)
    worker = start(config_for(managed=True, device={"budget": "32m"}))
    large = pack_small(tmp_path / "large", mebibytes=2)
    worker.assign(assigned(small_bundle, "m"), assigned(large))
    refused = worker.until_model("large", pb.MODEL_PHASE_REFUSED)
    assert refused.failure.reason == "LoadFailedPermanent"
    assert "failed in its trial run" in refused.failure.message
    assert "as the pool might say" in refused.failure.message
    worker.until_model("m", *CALLABLE)
    assert worker.infer("m") == [2.0, 4.0, 6.0, 8.0]


@pytest.fixture(scope="session")
def heavy(tmp_path_factory):
    """Four models of 40 MiB each."""
    root = tmp_path_factory.mktemp("heavy")
    return [pack_small(root / name, mebibytes=40, factor=index) for index, name in enumerate("abcd", start=1)]


def test_a_worker_with_its_weights_in_xlas_allocator_swaps_models_and_compacts_by_reloading(config_for, start, heavy):
    config = config_for(managed=True, device={"budget": "280m", "allocator": "bfc"}, host={"budget": "192m"})
    worker = start(config)
    worker.assign(*(assigned(bundle) for bundle in heavy))
    worker.until(lambda state: sum(m.phase in CALLABLE for m in state.models) == 4)
    memory = worker.worker.parts.memory
    assert isinstance(memory, BfcMemory)

    def call(factor: int) -> None:
        for _ in range(5):
            assert worker.infer("abcd"[factor - 1]) == [factor * x for x in (1.0, 2.0, 3.0, 4.0)]

    with ThreadPoolExecutor(4) as clients:
        list(clients.map(call, range(1, 5)))
    state = worker.until(lambda state: state.device.evictions_total > 0)
    assert state.device.admission_failures_total == 0
    lines = {line.line: line.bytes for line in worker.control.GetPlan(pb.GetPlanRequest()).plan.lines}
    assert lines["scratch"] >= POOL_MARGIN
    resident = {info.key.partition("#")[0] for info in memory.extents()}
    answer = worker.control.CompactMemory(pb.CompactMemoryRequest(mode=pb.COMPACTION_MODE_MOVE), timeout=60)
    assert set(answer.reloaded) == resident
    assert answer.moved_bytes == 0
    assert memory.exact
    assert json.loads(worker.page("/map")[1])
