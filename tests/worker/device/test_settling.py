# SPDX-License-Identifier: Apache-2.0
"""A start waits for device memory that others are about to give back, up to a limit.

llm-d-incubation/llm-d-fast-model-actuation#709.
"""

from __future__ import annotations

from itertools import chain, repeat

import pytest

from ballast_worker.device.nvml import Holder, Usage
from ballast_worker.device.settling import LIMIT_SECONDS, LOOK_SECONDS, QUIET_LOOKS, held_by, settle

GIB = 1 << 30
OLD = (Holder(4711, 70 * GIB),)


def held(free: int) -> Usage:
    return Usage(free, 80 * GIB - free, OLD)


FREE = Usage(79 * GIB, GIB)


class Script:
    """Shows one usage after the other, the last for ever, and counts the pauses."""

    def __init__(self, *usages: Usage | None, stop_after: int | None = None) -> None:
        self._usages = chain(usages, repeat(usages[-1]))
        self._stop_after = stop_after
        self.pauses = 0
        self.said: list[str] = []

    def pause(self, _: float) -> bool:
        self.pauses += 1
        return self.pauses == self._stop_after

    def settle(self, wanted: int | None) -> Usage | None:
        return settle(lambda: next(self._usages), wanted, pause=self.pause, say=self.said.append)


def test_a_start_waits_until_the_memory_of_a_killed_worker_is_free() -> None:
    script = Script(held(9 * GIB), Usage(9 * GIB, 71 * GIB), Usage(40 * GIB, 40 * GIB), FREE)
    assert script.settle(60 * GIB) == FREE
    assert script.pauses == 3
    assert "process 4711" in script.said[0]
    assert "no process is known to hold the rest" in script.said[1]


def test_enough_free_memory_is_not_waited_for_whoever_else_is_there() -> None:
    script = Script(held(60 * GIB))
    assert script.settle(60 * GIB) == held(60 * GIB)
    assert script.pauses == 0


def test_the_wait_has_a_limit_and_names_who_holds_the_memory() -> None:
    script = Script(held(9 * GIB))
    assert script.settle(60 * GIB) == held(9 * GIB)
    assert script.pauses == LIMIT_SECONDS / LOOK_SECONDS
    assert set(script.said) == {
        f"waiting for {60 * GIB} bytes of device memory: {9 * GIB} are free; held by process 4711 with {70 * GIB} bytes"
    }


def test_a_derived_budget_takes_what_is_there_once_nothing_more_comes() -> None:
    script = Script(held(9 * GIB), held(20 * GIB), held(79 * GIB))
    assert script.settle(None) == held(79 * GIB)
    assert script.pauses == 2 + QUIET_LOOKS


def test_a_derived_budget_on_a_card_of_its_own_is_looked_at_twice() -> None:
    script = Script(FREE)
    assert script.settle(None) == FREE
    assert script.pauses == 1


def test_memory_that_grows_after_the_process_is_gone_is_waited_for() -> None:
    script = Script(Usage(9 * GIB, 71 * GIB), FREE)
    assert script.settle(None) == FREE


@pytest.mark.parametrize("wanted", [None, 60 * GIB])
def test_a_driver_that_tells_nothing_is_not_waited_for(wanted: int | None) -> None:
    script = Script(None)
    assert script.settle(wanted) is None
    assert script.pauses == 0


def test_the_end_of_the_process_ends_the_wait() -> None:
    script = Script(held(9 * GIB), stop_after=2)
    assert script.settle(60 * GIB) == held(9 * GIB)
    assert script.pauses == 2


def test_holders_are_named_with_what_is_known_of_them(tmp_path) -> None:
    (tmp_path / "12").mkdir()
    (tmp_path / "12" / "comm").write_text("python3\n")
    words = held_by([Holder(7, None), Holder(12, GIB)], proc=tmp_path)
    assert words == f"held by process 12 (python3) with {GIB} bytes, process 7"
    assert held_by([Holder(n, 1) for n in range(1, 7)], proc=tmp_path).endswith(" and 2 more")
    assert held_by([Holder(0, None)], proc=tmp_path) == "held by a process"
