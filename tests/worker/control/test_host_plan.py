# SPDX-License-Identifier: Apache-2.0
"""The host memory plan: lines that sum to the memory limit, and values that cure what does not fit."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import pytest

from ballast_contract.config import Host
from ballast_contract.quantities import ceil_api, floor_api, parse_api
from ballast_contract.reasons import Reason
from ballast_worker.control import hostplan_text
from ballast_worker.control.hostbudget import PROCESS_BYTES, HostFacts
from ballast_worker.control.hostplan import ARENA, AT_READY, LEFT, POOL, PROCESS, RING, HostInputs, make_host_plan
from ballast_worker.device.budget import Budget
from ballast_worker.device.plan import ModelNeed, PlanInputs, make_plan
from ballast_worker.host.limits import MARGIN_BYTES

MI, GI = 1 << 20, 1 << 30
MEMORY = "workers.resources.limits.memory"
LIMIT = "the container's memory limit"
NODE = "the node's /dev/shm"
MOUNT = "the size of /dev/shm"
LEAST = 64 * MI + AT_READY["cuda"] + MARGIN_BYTES


def device(budget):
    need = ModelNeed("a", 30 * MI, pinned=False, scratch=MI)
    inputs = PlanInputs(budget=Budget(budget, "", "set"), context=0, code=0, scratch=MI, models=(need,), reserved=False)
    return make_plan(inputs)


def inputs(limit, *, mount=64 * GI, backend="cuda", managed=False, arena=None, free=None, workers=1, **config):
    return HostInputs(
        config=Host.model_validate({"segment_bytes": "4m", **config}),
        facts=HostFacts(Path("/dev/shm"), mount, mount, limit, free if free is not None else limit or 64 * GI),
        backend=backend,
        managed=managed,
        workers=workers,
        useful=None,
        ring=64 * MI,
        device=None if arena is None else device(arena),
    )


def plan(limit, **given):
    return make_host_plan(inputs(limit, **given))


def lines(found):
    return {line.name: line.nbytes for line in found.lines}


@pytest.mark.parametrize("limit", [5 * GI, 2 * GI, 1500 * MI])
@pytest.mark.parametrize("budget", ["1g", "auto", "unlimited", "0"])
@pytest.mark.parametrize("backend", ["cpu", "cuda"])
def test_the_lines_of_a_plan_that_fits_sum_to_the_memory_limit(limit, budget, backend):
    found = plan(limit, budget=budget, backend=backend, arena=200 * MI)
    assert found.fits
    assert sum(lines(found).values()) == limit
    assert all(line.nbytes >= line.minimum for line in found.lines)
    assert (ARENA in lines(found)) == (backend == "cpu")


def test_without_a_limit_nothing_is_left_over_and_nothing_lacks():
    found = plan(None, budget="8g", backend="cpu", arena=200 * MI)
    assert found.fits
    assert lines(found) == {POOL: 8 * GI, RING: 64 * MI, ARENA: device(200 * MI).arena, PROCESS: PROCESS_BYTES}


def test_the_pool_of_workers_that_do_not_share_is_this_workers_part_and_that_of_a_node_is_the_whole():
    assert lines(plan(9 * GI, budget="8g", workers=4))[POOL] == 2 * GI
    assert lines(plan(19 * GI, budget="8g", workers=4, sharing="node"))[POOL] == 8 * GI


def test_between_the_measured_minimum_and_what_is_advised_it_fits_and_warns():
    assert plan(GI + 64 * MI + PROCESS_BYTES, budget="1g").warnings == ()
    tight = plan(GI + LEAST, budget="1g")
    assert tight.fits
    assert str(AT_READY["cuda"] + MARGIN_BYTES) in tight.warnings[0]
    assert LEFT in lines(tight)
    refused = plan(GI + LEAST - 1, budget="1g")
    assert (refused.fits, refused.shortfall, refused.warnings) == (False, 1, ())
    assert sum(lines(refused).values()) == refused.minimum == GI + LEAST


@pytest.mark.parametrize("budget", ["auto", "unlimited", "0"])
def test_what_the_worker_chooses_itself_is_refused_only_where_the_process_alone_does_not_fit(budget):
    assert plan(LEAST, budget=budget, mount=0).fits
    refused = plan(LEAST - 1, budget=budget, mount=0)
    assert refused.shortfall == 1
    assert [knob.key for knob in refused.knobs] == [LIMIT]


def test_the_message_names_shortfall_lines_and_values():
    failure = hostplan_text.refusal(plan(100 * MI, budget="64m", backend="cpu", arena=50 * MI))
    assert failure.reason is Reason.INSUFFICIENT_HOST_MEMORY
    assert "bytes are missing" in failure.message
    for name in (POOL, RING, ARENA, PROCESS):
        assert name in failure.message
    failure = hostplan_text.refusal(plan(None, budget="128g"))
    assert failure.reason is Reason.SHM_TOO_SMALL
    for part in ("/dev/shm", str(64 * GI), str(128 * GI), "host.budget=65536Mi", f"{MOUNT}=131072Mi"):
        assert part in failure.message


@pytest.mark.parametrize(
    ("given", "keys"),
    [
        ({"limit": 4 * GI, "budget": "4g"}, {"host.budget", LIMIT}),
        ({"limit": 100 * MI, "budget": "4g"}, {LIMIT}),
        ({"limit": 4 * GI + 99 * MI, "budget": "4g", "managed": True}, {MEMORY}),
        ({"limit": None, "budget": "4g", "mount": GI}, {"host.budget", MOUNT}),
        ({"limit": 9 * GI, "budget": "4g", "mount": GI, "managed": True, "sharing": "node"}, {"host.budget", NODE}),
        ({"limit": GI, "budget": "4g", "mount": GI, "managed": True}, {MEMORY}),
        ({"limit": 9 * GI, "budget": "4g", "mount": GI, "managed": True}, {"host.budget"}),
        ({"limit": 4 * GI, "budget": "4g", "mount": GI}, {"host.budget"}),
        ({"limit": GI, "budget": "512m", "backend": "cpu", "arena": 600 * MI}, {"host.budget", LIMIT, "device.budget"}),
    ],
)
def test_the_settings_that_are_named(given, keys):
    limit = given.pop("limit")
    found = plan(limit, **given)
    assert not found.fits
    assert {knob.key for knob in found.knobs} == keys


def changed(before, knob, value):
    """What a worker finds once a setting has a value, where an operator does what it does about limits and volumes."""
    config, facts, asked = before.config, before.facts, before.asked
    if knob == "host.budget":
        if before.managed and facts.limit is not None:
            facts = replace(facts, limit=facts.limit - asked + value)
        return replace(before, config=config.model_copy(update={"budget": value}), facts=facts)
    if knob == "device.budget":
        return replace(before, device=device(value))
    if knob in (NODE, MOUNT):
        return replace(before, facts=replace(facts, mount_total=value))
    limit = value + asked if before.managed else value
    mount = facts.mount_total
    if before.managed and config.sharing == "none" and mount == facts.limit:
        mount = min(limit, asked + 64 * MI)
    return replace(before, facts=replace(facts, limit=limit, mount_total=mount))


LIMITS = [None, 300 * MI, 700 * MI, GI, 2 * GI, 4 * GI, 4 * GI + 1, 5 * GI]
GRID = list(
    itertools.product(LIMITS, [100 * MI, GI, 8 * GI], [False, True], ["node", "none"], [1, 3], [None, 40 * MI, 2 * GI])
)


@pytest.mark.parametrize("budget", ["64m", "1g", "4g", "auto"])
def test_every_value_that_is_named_makes_it_fit_alone_and_a_nearer_one_does_not(budget):
    refused = 0
    for limit, mount, managed, sharing, workers, arena in GRID:
        backend = "cuda" if arena is None else "cpu"
        size = mount
        if managed and sharing == "none" and limit is not None:
            size = min(mount, limit)
        before = inputs(
            limit, mount=size, managed=managed, workers=workers, backend=backend, arena=arena,
            budget=budget, sharing=sharing,
        )  # fmt: skip
        found = make_host_plan(before)
        refused += not found.fits
        for knob in found.knobs:
            value = parse_api(knob.value)
            assert make_host_plan(changed(before, knob.key, value)).fits, (before, knob)
            if knob.key == "device.budget":
                assert device(value).fits
                continue
            nearer = value + MI if knob.key == "host.budget" else value - MI
            spare = managed and knob.key == MEMORY and workers > 1  # how many will divide it is not known then
            assert spare or not make_host_plan(changed(before, knob.key, nearer)).fits, (before, knob)
    assert refused


def test_sizes_are_spelled_downwards_and_upwards():
    assert (floor_api(3 * MI - 1), ceil_api(3 * MI - 1), floor_api(3000), floor_api(0)) == ("2Mi", "3Mi", "2Ki", "0Ki")
