# SPDX-License-Identifier: Apache-2.0
"""What a whole worker does while clients call it: models swapped, compacted and evicted under calls, and nothing compiled."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.jax_events import heard
from helpers.running_worker import CALLABLE, Running, assigned, until
from helpers.small_bundles import pack_small

from ballast_contract.v1 import control_pb2 as pb

ROW = (1.0, 2.0, 3.0, 4.0)
MODES = (pb.COMPACTION_MODE_MOVE, pb.COMPACTION_MODE_FREE)


@pytest.fixture(scope="session")
def working(tmp_path_factory):
    """Four models of 4 MiB each whose executions take milliseconds, so that what comes meanwhile meets one under way."""
    root = tmp_path_factory.mktemp("working")
    return [
        pack_small(root / name, mebibytes=4, factor=factor, turns=30) for factor, name in enumerate("abcd", start=1)
    ]


@pytest.fixture(autouse=True)
def nothing_goes_wrong_behind_the_answers(caplog):
    """A step that failed on the device thread, and was taken again, is a fault all the same."""
    yield
    assert [record.getMessage() for record in caplog.get_records("call") if record.levelno >= logging.ERROR] == []


@pytest.fixture(params=["arena", "bfc"])
def swapping(request, config_for, start, working) -> Running:
    """A worker with room for three of four models."""
    budget = {"arena": "16m", "bfc": "157m"}[request.param]
    worker = start(config_for(managed=True, device={"budget": budget, "allocator": request.param}))
    worker.assign(*(assigned(bundle) for bundle in working))
    worker.until(lambda state: sum(model.phase in CALLABLE for model in state.models) == 4)
    assert 12 << 20 <= worker.state().device.weights_bytes < 16 << 20
    return worker


def call(worker: Running, name: str, factor: int) -> None:
    assert worker.infer(name) == [factor * x for x in ROW]


def compact(worker: Running, mode: int, *reload: str) -> pb.CompactMemoryResponse:
    return worker.control.CompactMemory(pb.CompactMemoryRequest(mode=mode, reload_models=reload), timeout=60)


@contextlib.contextmanager
def calling(worker: Running) -> Iterator[Counter[str]]:
    """Four clients that call a model each without a pause; counts right answers, and the end tells of any other."""
    stop, right = threading.Event(), Counter()

    def client(name: str, factor: int) -> None:
        while not stop.is_set():
            call(worker, name, factor)
            right[name] += 1

    with ThreadPoolExecutor(4) as pool:
        clients = [pool.submit(client, name, factor) for factor, name in enumerate("abcd", start=1)]
        try:
            yield right
        finally:
            stop.set()
        for one in clients:
            one.result(60)


def test_the_serving_process_never_compiles_not_even_for_a_model_that_is_added(swapping, working, tmp_path):
    allocator = swapping.process._config.device.allocator
    added = pack_small(tmp_path / f"for-{allocator}", factor=5)
    built = swapping.process._workshop.results().get("built", 0)
    with heard() as events:
        for name, factor in zip("abcdabcd", (1, 2, 3, 4) * 2, strict=True):
            call(swapping, name, factor)
        for mode in MODES:
            compact(swapping, mode, "a", "b")
            call(swapping, "d", 4)
        swapping.assign(*(assigned(bundle) for bundle in working), assigned(added), generation=2)
        swapping.until_model(added.manifest.name, *CALLABLE)
        call(swapping, added.manifest.name, 5)
        assert swapping.state().device.evictions_total > 0
        assert swapping.process._workshop.results().get("built", 0) == built + 1
        assert events == []


def test_compactions_under_calls_end_and_every_call_is_answered_right(swapping):
    with calling(swapping) as right:
        for mode in MODES * 5:
            compact(swapping, mode, "a", "b")
            enough = right.total() + 4
            until(lambda enough=enough: right.total() >= enough, lambda: f"answers: {right}")
    assert swapping.metric("worker_compactions_total") >= 10
    assert swapping.state().device.admission_failures_total == 0


def test_calls_that_race_with_the_eviction_of_their_model_are_answered_right(config_for, start, working):
    """vllm-project/vllm#15483, #45326: a request beside a sleep crashed the engine, or hung. Here each load evicts the model
    that is called at the same moment, a hundred times.
    """
    worker = start(config_for(managed=True, device={"budget": "8m"}))
    worker.assign(*(assigned(bundle) for bundle in working[:2]))
    worker.until(lambda state: sum(model.phase in CALLABLE for model in state.models) == 2)
    together = threading.Barrier(2)

    def client(name: str, factor: int) -> None:
        for _ in range(100):
            together.wait(60)
            call(worker, name, factor)

    with ThreadPoolExecutor(2) as clients:
        for one in [clients.submit(client, name, factor) for factor, name in enumerate("ab", start=1)]:
            one.result()
    assert worker.metric("worker_weight_evicts_total") >= 100
