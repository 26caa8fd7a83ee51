# SPDX-License-Identifier: Apache-2.0
"""Requests with large inputs while a large bundle loads: what it costs them, what they cost it, and a loader that keeps
one stream of copies busy.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from itertools import cycle
from statistics import median
from typing import Any
from unittest import mock

from ballast_worker.control.models import Built
from benchmarks.gpu import link
from benchmarks.gpu.prepare import INPUTS
from benchmarks.gpu.setting import MIB, Setting
from benchmarks.gpu.worker import PATIENCE, Answered, BenchmarkError, Worker
from benchmarks.summary import quantile


def measure(setting: Setting, built: Mapping[str, Built], emit: Callable[..., None]) -> None:
    """Emit input_p99_added_milliseconds_during_load and load_ratio_under_traffic; on a GPU also the same of a loader that
    has one stream instead of two, which shows what the second is for.
    """
    scale, big = setting.scale, built["big"].bundle.layout.nbytes
    worker = Worker(
        setting,
        {"big-a": "big", "big-b": "big", INPUTS: INPUTS},
        built,
        arena=big,
        host=big + 192 * MIB,
        pinned=frozenset({INPUTS}),
    )
    worker.load("big-a")
    names = cycle(["big-b", "big-a"])
    worker.call(INPUTS)
    limit = link.bytes_per_second(setting)

    with _requests(worker, scale.requests_per_second) as quiet:
        time.sleep(scale.seconds)
    polite, polite_loads = _loading(worker, names, scale.requests_per_second, scale.seconds)
    limit = max(limit, link.bytes_per_second(setting))
    if _refused(quiet) or _refused(polite):
        raise BenchmarkError(f"{_refused(quiet)} requests were refused in the quiet, {_refused(polite)} beside loads")

    def figures(answers: list[Answered], loads: list[float]) -> dict[str, float]:
        return {
            "input_p99_added_milliseconds_during_load": _milliseconds(answers)["p99"] - _milliseconds(quiet)["p99"],
            "load_ratio_under_traffic": big / median(loads) / limit,
        }

    emit(
        **figures(polite, polite_loads),
        traffic={
            "input_bytes": worker.zeros(INPUTS).nbytes,
            "requests_per_second": scale.requests_per_second,
            "limit_gigabytes_per_second": limit / 1e9,
            "quiet_milliseconds": _milliseconds(quiet),
            "during_loads_milliseconds": _milliseconds(polite),
            "loads": len(polite_loads),
        },
    )
    if setting.backend == "cuda":
        with _one_stream():
            greedy, greedy_loads = _loading(worker, names, scale.requests_per_second, scale.seconds)
        during = {"during_loads_milliseconds": _milliseconds(greedy)}
        emit(control_with_one_stream=figures(greedy, greedy_loads) | during)
    worker.close()


@contextmanager
def _one_stream() -> Iterator[None]:
    """Loads put all their copies on one stream."""
    from ballast_worker.device.cuda import CudaUpload  # noqa: PLC0415 - only where there is a GPU

    begin = CudaUpload.__init__

    def begin_with_one(self: CudaUpload, driver: Any, base: int, streams: list[Any], *rest: Any) -> None:
        begin(self, driver, base, streams[:1] * 2, *rest)

    with mock.patch.object(CudaUpload, "__init__", begin_with_one):
        yield


def _loading(
    worker: Worker, names: Iterator[str], per_second: float, seconds: float
) -> tuple[list[Answered], list[float]]:
    """Load one after the other for so long, with requests meanwhile; the requests, and seconds of each load."""
    loads: list[float] = []
    with _requests(worker, per_second) as answers:
        until = time.monotonic() + seconds
        while time.monotonic() < until or not loads:
            loads.append(worker.load(next(names)))
    return answers, loads


@contextmanager
def _requests(worker: Worker, per_second: float) -> Iterator[list[Answered]]:
    """Submit requests at a steady rate, whether or not earlier ones were answered; yields those that were."""
    answers: list[Answered] = []
    answered = threading.Semaphore(0)
    inputs = worker.zeros(INPUTS)
    ending = threading.Event()
    submitted = 0

    def keep(answer: Answered) -> None:
        answers.append(answer)
        answered.release()

    def submit() -> None:
        nonlocal submitted
        due = time.monotonic()
        while not ending.wait(max(0.0, due - time.monotonic())):
            worker.submit(INPUTS, inputs, keep)
            submitted += 1
            due += 1 / per_second

    thread = threading.Thread(target=submit, name="requests")
    thread.start()
    try:
        yield answers
    finally:
        ending.set()
        thread.join()
    # A refusal overtakes the calls that wait, so that no later call tells when all are answered.
    if not all(answered.acquire(timeout=PATIENCE) for _ in range(submitted)):
        raise BenchmarkError(f"{len(answers)} of {submitted} requests were answered")


def _refused(answers: list[Answered]) -> int:
    return sum(answer.refusal is not None for answer in answers)


def _milliseconds(answers: list[Answered]) -> dict[str, float]:
    values = [1e3 * answer.seconds for answer in answers if answer.refusal is None]
    return {
        "requests": len(answers),
        "refused": _refused(answers),
        "p50": median(values),
        "p99": quantile(values, 0.99),
        "longest": max(values),
    }
