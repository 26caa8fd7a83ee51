# SPDX-License-Identifier: Apache-2.0
"""The memory of a simulated worker is what a worker would plan with the edited spec, and what nobody can know is asked for."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ballast_contract import quantities
from ballast_operator.api.weightbudget import Device
from ballast_operator.edge.simulation_capacity import capacity
from ballast_operator.edge.simulation_input import InputError
from ballast_operator.edge.simulation_objects import Entry
from ballast_worker.device.budget import Budget
from ballast_worker.device.plan import CODE, SCRATCH, Declared, ModelNeed, PlanInputs, make_plan, observed

MIB, GIB = 1 << 20, 1 << 30
RUNNING = PlanInputs(
    budget=Budget(24 * GIB, "device.budget", "24Gi"),
    context=500 * MIB + 17,
    overhead=64 * MIB,
    code=70 * MIB + 1,
    scratch=GIB + 333,
    models=(ModelNeed("pinned", 3 * GIB + 5, pinned=True), ModelNeed("large", 2 * GIB, pinned=False)),
    declared=(Declared("large: kv", MIB, 100, 10, "large"),),
)


def status(plan, **more):
    lines = [{"line": x.name, "bytes": quantities.format_api(x.nbytes), "source": x.source} for x in plan.lines]
    return {"plan": lines, **more}


def room(device, status_=None):
    entry = Entry("budget.yaml, WeightBudget 'default'", "default", "", {"status": status_ or {}})
    return capacity(entry, Device.model_validate(device))


@pytest.mark.parametrize(
    ("device", "inputs"),
    [
        ({"budget": "24Gi"}, {}),
        ({"budget": "48Gi"}, {"budget": Budget(48 * GIB, "", "")}),
        ({"budget": "9Gi"}, {"budget": Budget(9 * GIB, "", "")}),
        ({"budget": "24Gi", "weights": {"slackPercent": 33}}, {"slack_percent": 33}),
        ({"budget": "24Gi", "weights": {"maxPercent": 41}}, {"max_percent": 41}),
        ({"budget": "24Gi", "scratch": "5Gi"}, {"configured_scratch": 5 * GIB}),
        (
            {"budget": "40Gi", "scratch": "1Gi", "weights": {"slackPercent": 0, "maxPercent": 77}},
            {
                "budget": Budget(40 * GIB, "", ""),
                "configured_scratch": GIB,
                "slack_percent": 0,
                "max_percent": 77,
            },
        ),
    ],
)
def test_an_edited_spec_gives_what_a_worker_would_plan_with_it(device, inputs):
    after = make_plan(replace(RUNNING, **inputs))
    assert after.fits
    assert room(device, status(make_plan(RUNNING))).nbytes == after.line(CODE) + after.arena


@pytest.mark.parametrize(
    ("device", "said"), [({}, "spec.device.budget is left out"), ({"budget": "90%"}, "spec.device.budget is 90%")]
)
def test_without_a_size_the_budget_is_that_of_the_plan_and_says_so(device, said):
    plan = make_plan(RUNNING)
    found = room(device, status(plan))
    assert found.nbytes == plan.line(CODE) + plan.arena
    assert f"the 24 GiB of status.plan ({said}; write a size to try another)" in found.source


def test_a_share_of_a_card_still_obeys_the_other_settings():
    after = make_plan(replace(RUNNING, slack_percent=50))
    device = {"budget": "90%", "weights": {"slackPercent": 50}}
    assert room(device, status(make_plan(RUNNING))).nbytes == after.line(CODE) + after.arena


def test_a_context_that_slack_has_paid_for_leaves_less_and_never_more():
    plan = make_plan(RUNNING)
    used = plan.arena + plan.line(SCRATCH) + RUNNING.code + 900 * MIB
    found = room({"budget": "24Gi"}, status(observed(plan, used=used, code=RUNNING.code)))
    assert 0 < plan.line(CODE) + plan.arena - found.nbytes <= 900 * MIB


def test_a_plan_that_does_not_fit_tells_what_was_measured_though_not_the_budget():
    inputs = replace(RUNNING, declared=())
    plan = make_plan(replace(inputs, budget=Budget(4 * GIB, "", "")))
    short = status(plan, shortfall="3Gi")
    after = make_plan(inputs)
    assert not plan.fits
    assert room({"budget": "24Gi"}, short).nbytes == after.line(CODE) + after.arena
    with pytest.raises(InputError, match=r"is 90%, and the plan in status.plan does not fit.*give --capacity"):
        room({"budget": "90%"}, short)


def test_scratch_that_was_a_size_tells_nothing_of_auto():
    configured = status(make_plan(replace(RUNNING, configured_scratch=2 * GIB)))
    with pytest.raises(InputError, match=r"scratch is auto, and status.plan was made with a size.*give --capacity"):
        room({"budget": "24Gi"}, configured)
    assert room({"budget": "24Gi", "scratch": "2Gi"}, configured).nbytes


def test_before_a_pool_runs_a_size_less_slack_and_scratch_counts_and_says_what_is_not_known():
    found = room({"budget": "10Gi", "scratch": "1Gi"})
    assert found.nbytes == 8 * GIB
    assert found.source == (
        "spec.device.budget 10Gi less scratch 1 GiB, slack 10%; driver and programs are not known before the pool runs"
    )


@pytest.mark.parametrize("device", [{}, {"budget": "90%"}])
def test_before_a_pool_runs_a_share_of_a_card_cannot_be_known(device):
    with pytest.raises(InputError, match=r"spec.device.budget is .*give --capacity"):
        room(device)


def test_where_nothing_is_left_for_weights_the_message_says_what_takes_it():
    with pytest.raises(InputError, match=r"budget 2Gi leaves nothing.*context 564 MiB, scratch 1 GiB.*slack 60%"):
        room({"budget": "2Gi", "weights": {"slackPercent": 60}}, status(make_plan(RUNNING)))


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"plan": 3}, r"status: 'plan'"),
        ({"plan": [{"line": "code"}]}, r"status: 'plan.0.bytes': is missing"),
        ({"plan": [{"line": "code", "bytes": "12 apples"}]}, r"status.plan, code: '12 apples' is not a size"),
    ],
)
def test_a_plan_that_cannot_be_read_is_named(given, words):
    with pytest.raises(InputError, match=rf"budget.yaml, WeightBudget 'default': {words}"):
        room({"budget": "24Gi"}, given)
