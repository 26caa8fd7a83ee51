# SPDX-License-Identifier: Apache-2.0
"""The upload gate, and loads that step aside for it."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from helpers.device_models import PATIENCE, Weights

from ballast_worker.bundle.chunk import Chunk
from ballast_worker.device.arena_memory import ArenaMemory
from ballast_worker.device.cpu import CpuBackend
from ballast_worker.device.gate import UploadGate


def test_an_open_gate_keeps_nobody() -> None:
    gate = UploadGate()
    gate.wait_clear()
    with gate.uploading():
        assert gate.closed
    assert not gate.closed
    gate.wait_clear()


def test_a_load_waits_for_every_upload_that_was_pending() -> None:
    gate = UploadGate()
    log: list[str] = []
    first, second = gate.uploading(), gate.uploading()
    first.__enter__()
    second.__enter__()
    with ThreadPoolExecutor(1) as pool:
        asked = threading.Event()

        def load() -> None:
            asked.set()
            gate.wait_clear()
            log.append("load")

        loading = pool.submit(load)
        assert asked.wait(PATIENCE)
        log.append("second ends")
        second.__exit__(None, None, None)
        log.append("first ends")
        first.__exit__(None, None, None)
        loading.result(PATIENCE)
    assert log == ["second ends", "first ends", "load"]


def test_uploads_that_begin_later_do_not_starve_a_load() -> None:
    gate = UploadGate()
    first = gate.uploading()
    first.__enter__()
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(gate.wait_clear)
        while not gate._changed._waiters:  # a waiter is counted before it lets go of the lock
            pass
        with gate.uploading():
            first.__exit__(None, None, None)
            waiting.result(PATIENCE)
            assert gate.closed


def test_an_upload_that_fails_opens_the_gate() -> None:
    gate = UploadGate()
    with pytest.raises(ZeroDivisionError), gate.uploading():
        _ = 1 / 0
    assert not gate.closed


def test_a_load_copies_no_further_piece_while_inputs_are_uploaded() -> None:
    gate = UploadGate()
    memory = ArenaMemory(CpuBackend(), 1 << 20, gate=gate)
    weights = Weights.of_bytes(1 << 20)
    log: list[str] = []
    upload = gate.uploading()
    began = threading.Event()

    def chunks() -> Iterator[Chunk]:
        first, second = weights.chunks(1 << 19)
        yield first
        upload.__enter__()
        began.set()
        yield second

    memory.place("a", weights.layout)
    with ThreadPoolExecutor(1) as pool:
        filling = pool.submit(memory.fill, "a", chunks(), progress=lambda done: log.append(f"{done} bytes"))
        assert began.wait(PATIENCE)
        log.append("the gate opens")
        upload.__exit__(None, None, None)
        filling.result(PATIENCE)
    assert log.index("the gate opens") < log.index(f"{1 << 20} bytes")
    memory.activate("a")
    memory.close()
