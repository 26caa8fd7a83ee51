# SPDX-License-Identifier: Apache-2.0
"""The budget: from what is configured and what was observed."""

from __future__ import annotations

import pytest

from ballast_worker.device.backend import DeviceUnavailableError
from ballast_worker.device.budget import CPU_DEFAULT, Budget, BudgetError, resolve
from ballast_worker.device.cuda import identify
from ballast_worker.device.probe import DeviceFacts, describe, driver_used

GIB = 1 << 30
CARD = DeviceFacts(kind="cuda", name="a card", total_bytes=80 * GIB, free_bytes=70 * GIB, used_before_bytes=10 * GIB)
CPU = DeviceFacts(kind="cpu", name="cpu")


def test_configured_bytes_are_taken_as_they_are() -> None:
    assert resolve(60 * GIB, GIB, CARD) == Budget(60 * GIB, "device.budget", "60Gi", 70 * GIB)
    assert resolve(3 * GIB, GIB, CPU) == Budget(3 * GIB, "device.budget", "3Gi")


def test_a_percentage_is_of_the_whole_card() -> None:
    budget = resolve("90%", GIB, CARD)
    assert (budget.nbytes, budget.setting, budget.reserve) == (72 * GIB, "90%", None)


def test_without_a_setting_the_reserve_is_left_of_what_is_free() -> None:
    budget = resolve(None, GIB, CARD)
    assert (budget.nbytes, budget.setting, budget.available, budget.reserve) == (69 * GIB, "unset", 70 * GIB, GIB)
    assert resolve(None, 71 * GIB, CARD).nbytes == 0


def test_on_cpu_the_default_is_a_gibibyte() -> None:
    assert resolve(None, GIB, CPU).nbytes == CPU_DEFAULT == GIB


def test_a_percentage_of_an_unknown_size_is_refused() -> None:
    with pytest.raises(BudgetError, match="'50%' is a share of the device, whose size is not known on cpu"):
        resolve("50%", GIB, CPU)


def test_unknown_free_memory_asks_for_a_size() -> None:
    with pytest.raises(BudgetError, match=r"device\.budget is unset.*write a size"):
        resolve(None, GIB, DeviceFacts(kind="cuda", name="a card", total_bytes=80 * GIB))


def test_cpu_facts_are_absent_rather_than_guessed() -> None:
    facts = describe("cpu", 0)
    assert (facts.kind, facts.total_bytes, facts.free_bytes, facts.other_processes) == ("cpu", None, None, None)
    assert driver_used(facts) is None


def test_the_drivers_figure_says_nothing_when_others_compute_on_the_device() -> None:
    assert driver_used(DeviceFacts(kind="cuda", name="a card", used_before_bytes=GIB, other_processes=1)) is None


def test_a_worker_on_cuda_without_its_packages_or_driver_is_told_what_is_missing() -> None:
    with pytest.raises(DeviceUnavailableError, match=r"install ballast\[gpu\]|no NVIDIA driver"):
        identify(0)
