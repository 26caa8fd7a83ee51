# SPDX-License-Identifier: Apache-2.0
"""A model that is added while others serve is built in the plan's slack; where that is too little, the refusal says what is not."""

from __future__ import annotations

import re

import pytest
from helpers.small_bundles import pack_small

from ballast_contract.config import WorkerConfig
from ballast_contract.quantities import parse_api
from ballast_contract.reasons import Reason
from ballast_worker.bundle.reader import Bundle
from ballast_worker.control.models import Failure
from ballast_worker.control.planning import Basis, DeviceLimits
from ballast_worker.device.budget import Budget

GI = 1 << 30
STARVED = Failure(Reason.INSUFFICIENT_DEVICE_MEMORY, "out of memory")


@pytest.fixture(scope="module")
def bundle(tmp_path_factory) -> Bundle:
    return pack_small(tmp_path_factory.mktemp("bundles") / "m", mebibytes=64)


def serving(budget: int, *, backend: str = "cuda", slack: int = 10) -> DeviceLimits:
    """What a worker that serves allows."""
    config = WorkerConfig.model_validate({"backend": backend, "device": {"weights": {"slackPercent": slack}}})
    basis = Basis(config, Budget(budget, "a test", ""), context=600 << 20, overhead=0)
    return DeviceLimits(basis, basis.plan(basis.inputs({})))


def test_a_worker_that_serves_gives_its_builders_the_slack(bundle):
    limits = serving(16 * GI)
    assert limits.build_memory() == limits.plan.line("slack")
    assert 1.5 * GI < limits.build_memory() < 1.6 * GI


def test_the_slack_that_is_named_holds_what_was_said_to_be_needed(bundle):
    told = serving(4 * GI).starved(bundle, STARVED)
    assert told.reason is Reason.INSUFFICIENT_DEVICE_MEMORY
    assert not told.permanent
    [percent] = re.findall(r"set device\.weights\.slackPercent to (\d+) \(now 10\)", told.message)
    enough, less = (serving(4 * GI, slack=int(percent) - by).build_memory() for by in (0, 1))
    need = 2 * (64 << 20) + (1 << 30)  # the ballast and what builders take besides
    assert less < need * 1.001 < enough * 1.002
    assert told.message.endswith("out of memory")


def test_a_device_of_which_half_would_be_slack_needs_a_larger_budget(bundle):
    told = serving(2 * GI).starved(bundle, STARVED)
    [budget] = re.findall(r"set device\.budget to (\S+),", told.message)
    assert serving(parse_api(budget), slack=50).build_memory() > GI
    assert "replace the worker" in told.message


def test_a_worker_that_serves_nothing_yet_gives_all(bundle):
    limits = serving(4 * GI)
    limits.plan = None
    assert limits.build_memory() == 4 * GI
    assert limits.starved(bundle, STARVED) is STARVED
