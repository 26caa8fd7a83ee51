# SPDX-License-Identifier: Apache-2.0
"""The device memory plan: every byte is accounted for, a refusal names what would help, and that does help."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import event, given, settings
from hypothesis import strategies as st

from ballast_contract import quantities
from ballast_contract.plan_lines import CODE, CONTEXT, ON_DEMAND, PINNED, SCRATCH, SLACK
from ballast_worker.device.budget import Budget
from ballast_worker.device.plan import (
    Declared,
    ModelNeed,
    PlanInputs,
    make_plan,
    observed,
)
from ballast_worker.device.plan_text import refusal, render

MIB = 1 << 20
GIB = 1 << 30


def configured(nbytes: int, available: int | None = None) -> Budget:
    return Budget(nbytes, "device.budget", quantities.format_api(nbytes), available)


def inputs(budget: int, available: int | None = None, **more) -> PlanInputs:
    return PlanInputs(
        **{"budget": configured(budget, available), "context": 0, "code": 0, "scratch": 0, "models": ()} | more
    )


def pinned(nbytes: int) -> tuple[ModelNeed, ...]:
    return (ModelNeed("pinned", nbytes, pinned=True),) if nbytes else ()


sizes = st.integers(0, 4 * GIB) | st.integers(0, 4000) | st.sampled_from([0, 1, MIB, GIB])


@st.composite
def any_inputs(draw) -> PlanInputs:
    """Plans that nearly fit: the budget is drawn around what the rest needs."""
    models = draw(st.lists(st.builds(ModelNeed, st.just("m"), sizes, st.booleans()), max_size=5))
    declared = draw(st.lists(st.tuples(st.integers(0, 64 * MIB), st.integers(0, 20), st.integers(0, 20)), max_size=2))
    wanted = PlanInputs(
        budget=configured(0),
        context=draw(st.sampled_from([0, 600 * MIB])),
        code=draw(st.integers(0, 100 * MIB)),
        scratch=draw(sizes),
        models=tuple(replace(model, name=f"m{index}") for index, model in enumerate(models)),
        overhead=draw(st.sampled_from([0, 32 * MIB])),
        declared=tuple(Declared(f"d{i}", u, max(c, m), min(c, m), "g") for i, (u, c, m) in enumerate(declared)),
        configured_scratch=draw(st.none() | sizes),
        max_percent=draw(st.just(100) | st.integers(1, 100)),
        slack_percent=draw(st.integers(0, 20) | st.integers(0, 99)),
    )
    minimum = make_plan(wanted).minimum
    available = draw(st.none() | st.integers(80, 200).map(lambda percent: minimum * percent // 100))
    if available is not None and draw(st.booleans()):
        reserve = available * draw(st.integers(0, 60)) // 100
        return replace(wanted, budget=Budget(available - reserve, "free at start", "unset", available, reserve))
    return replace(wanted, budget=configured(minimum * draw(st.integers(60, 130)) // 100, available))


@given(any_inputs())
def test_the_lines_sum_to_the_budget_to_the_byte(wanted: PlanInputs) -> None:
    plan = make_plan(wanted)
    event(f"fits: {plan.fits}")
    assert all(line.nbytes >= 0 and line.minimum >= 0 for line in plan.lines)
    assert all(line.nbytes >= line.minimum for line in plan.lines if line.name != SLACK)
    assert sum(line.minimum for line in plan.lines) == plan.minimum
    assert sum(line.nbytes for line in plan.lines) == max(plan.budget, plan.minimum)
    assert plan.fits == (plan.shortfall == 0)


@given(any_inputs())
def test_the_minimum_is_the_smallest_budget_that_fits(wanted: PlanInputs) -> None:
    minimum = make_plan(wanted).minimum
    assert make_plan(replace(wanted, budget=configured(minimum))).fits
    if minimum:
        assert not make_plan(replace(wanted, budget=configured(minimum - 1))).fits


@given(any_inputs())
def test_a_plan_that_fits_keeps_slack_and_shares_and_holds_the_largest_model(wanted: PlanInputs) -> None:
    plan = make_plan(wanted)
    if not plan.fits:
        return
    usable = plan.budget - plan.line(CONTEXT) - plan.line(CODE)
    assert plan.line(SLACK) * 100 >= usable * wanted.slack_percent
    assert plan.arena * 100 <= usable * wanted.max_percent
    assert plan.line(ON_DEMAND) >= max((m.weights for m in wanted.models if not m.pinned), default=0)
    for line in wanted.declared:
        assert line.minimum * line.unit <= plan.line(line.name) <= line.count * line.unit


def set_knob(wanted: PlanInputs, key: str, value: str) -> PlanInputs:
    """What a person does who follows a suggestion."""
    match key:
        case "device.budget":
            nbytes = quantities.parse_api(value)
            return replace(wanted, budget=Budget(nbytes, "device.budget", value, wanted.budget.available))
        case "device.reserve":
            assert wanted.budget.available is not None
            reserve = quantities.parse_api(value)
            nbytes = max(0, wanted.budget.available - reserve)
            return replace(wanted, budget=replace(wanted.budget, nbytes=nbytes, reserve=reserve))
        case "device.weights.maxPercent":
            return replace(wanted, max_percent=int(value))
        case "device.weights.slackPercent":
            return replace(wanted, slack_percent=int(value))
        case "device.scratch":
            return replace(wanted, configured_scratch=quantities.parse_api(value))
    assert value == "unpinned"
    name = key.removeprefix("residency of ")
    return replace(
        wanted,
        models=tuple(replace(model, pinned=model.pinned and model.name != name) for model in wanted.models),
    )


def step_back(key: str, value: str, current: str) -> str:
    """The value one step nearer to the present one, in the unit in which it is spelled."""
    digits = value.rstrip("KMGTi")
    unit = value[len(digits) :]
    rises = key.startswith("device.weights.max") or (
        key == "device.budget" and (current == "unset" or quantities.parse_api(value) > quantities.parse_api(current))
    )
    return f"{int(digits) + (-1 if rises else 1)}{unit}"


@settings(max_examples=300)
@given(any_inputs())
def test_every_suggested_value_alone_makes_the_plan_fit_and_one_step_less_does_not(wanted: PlanInputs) -> None:
    plan = make_plan(wanted)
    for knob in plan.knobs:
        event(knob.key.split(" of ")[0])
        assert make_plan(set_knob(wanted, knob.key, knob.value)).fits
        if knob.value != "unpinned":
            weaker = step_back(knob.key, knob.value, knob.current)
            assert not make_plan(set_knob(wanted, knob.key, weaker)).fits


@given(any_inputs())
def test_no_smaller_pinned_model_than_the_suggested_one_suffices(wanted: PlanInputs) -> None:
    suggested = next((k.key for k in make_plan(wanted).knobs if k.value == "unpinned"), None)
    for model in (m for m in wanted.models if m.pinned):
        fits = make_plan(set_knob(wanted, f"residency of {model.name}", "unpinned")).fits
        if fits and not make_plan(wanted).fits:
            assert suggested is not None
            chosen = next(m for m in wanted.models if f"residency of {m.name}" == suggested)
            assert chosen.weights <= model.weights


@given(any_inputs())
def test_allowed_oversubscription_always_starts_and_says_so(wanted: PlanInputs) -> None:
    refused, allowed = make_plan(wanted), make_plan(replace(wanted, oversubscription="allow"))
    assert allowed.fits
    assert allowed.shortfall == refused.shortfall
    assert bool(allowed.warnings) == (not refused.fits)
    assert sum(line.nbytes for line in allowed.lines) >= allowed.budget
    assert allowed.line(ON_DEMAND) >= max((m.weights for m in wanted.models if not m.pinned), default=0)


@pytest.mark.parametrize(
    ("usable", "max_percent", "scratch", "pinned_bytes", "on_demand"),
    [
        (1000, 100, 0, 0, 900),
        (1000, 50, 0, 0, 500),
        (1000, 100, 300, 0, 600),
        (1000, 100, 300, 200, 400),
        (0, 100, 0, 0, 0),
    ],
)
def test_on_demand_weights_by_the_numbers_of_the_first_system(
    usable: int, max_percent: int, scratch: int, pinned_bytes: int, on_demand: int
) -> None:
    plan = make_plan(
        inputs(usable + 70, context=50, code=20, scratch=scratch, models=pinned(pinned_bytes), max_percent=max_percent)
    )
    assert plan.fits
    assert plan.line(ON_DEMAND) == on_demand
    assert plan.line(SLACK) == usable - scratch - pinned_bytes - on_demand


@pytest.mark.parametrize(("scratch", "pinned_bytes", "missing"), [(300, 700, 112), (950, 0, 56)])
def test_what_the_first_system_overcommitted_is_refused_with_the_shortfall(
    scratch: int, pinned_bytes: int, missing: int
) -> None:
    plan = make_plan(inputs(1000, scratch=scratch, models=pinned(pinned_bytes)))
    assert not plan.fits
    assert plan.shortfall == missing
    allowed = make_plan(inputs(1000, scratch=scratch, models=pinned(pinned_bytes), oversubscription="allow"))
    assert allowed.fits
    assert allowed.line(ON_DEMAND) == 0


def test_lines_come_in_order_with_declared_ones_between_scratch_and_weights() -> None:
    plan = make_plan(
        inputs(
            1000 * MIB,
            context=100 * MIB,
            models=(ModelNeed("a", 200 * MIB, pinned=False),),
            declared=(Declared("lanes", MIB, 8, 8, "llm"), Declared("kv pool", 16 * MIB, 100, 1, "llm")),
        )
    )
    assert [line.name for line in plan.lines] == [CONTEXT, CODE, SCRATCH, "lanes", "kv pool", PINNED, ON_DEMAND, SLACK]
    assert plan.line("lanes") == 8 * MIB
    assert plan.line("kv pool") == (810 - 8 - 200) // 16 * 16 * MIB
    assert plan.line(ON_DEMAND) >= 200 * MIB


def test_the_budget_must_be_there() -> None:
    plan = make_plan(inputs(60 * GIB, 50 * GIB, models=pinned(GIB)))
    assert not plan.fits
    assert plan.shortfall == 10 * GIB
    assert [(knob.key, knob.value, knob.current) for knob in plan.knobs] == [("device.budget", "51200Mi", "60Gi")]


def test_a_model_whose_scratch_the_setting_does_not_give_is_named() -> None:
    models = (
        ModelNeed("greedy", MIB, pinned=False, scratch=9 * MIB),
        ModelNeed("modest", MIB, pinned=False, scratch=MIB),
    )
    plan = make_plan(inputs(GIB, scratch=9 * MIB, configured_scratch=2 * MIB, models=models))
    assert plan.fits
    assert plan.line(SCRATCH) == 2 * MIB
    assert len(plan.warnings) == 1
    assert "'greedy' needs 9437184 bytes of scratch and device.scratch gives 2097152" in plan.warnings[0]


def test_less_scratch_than_any_model_needs_is_never_suggested() -> None:
    model = ModelNeed("m", 100 * MIB, pinned=False, scratch=50 * MIB)
    plan = make_plan(inputs(150 * MIB, scratch=50 * MIB, models=(model,), slack_percent=10))
    assert not plan.fits
    assert "device.scratch" not in {knob.key for knob in plan.knobs}
    roomier = make_plan(
        inputs(150 * MIB, scratch=50 * MIB, models=(replace(model, scratch=20 * MIB),), slack_percent=10)
    )
    assert ("device.scratch", "35Mi") in {(knob.key, knob.value) for knob in roomier.knobs}


def test_a_refusal_names_need_budget_shortfall_and_every_setting() -> None:
    models = (
        ModelNeed("a", 3 * GIB, pinned=True),
        ModelNeed("b", 2 * GIB, pinned=True),
        ModelNeed("c", 5 * GIB, pinned=False),
    )
    plan = make_plan(inputs(12 * GIB, context=600 * MIB, scratch=GIB, models=models))
    text = refusal(plan)
    assert f"it needs {plan.minimum} bytes" in text
    assert f"{plan.shortfall} bytes are missing" in text
    for knob in plan.knobs:
        assert f"{knob.key}={knob.value} (now {knob.current})" in text
    assert {knob.key for knob in plan.knobs} == {
        "device.budget",
        "device.weights.slackPercent",
        "device.scratch",
        "residency of b",
    }


def test_a_refusal_that_no_single_setting_cures_says_so() -> None:
    plan = make_plan(inputs(60 * GIB, GIB, models=pinned(2 * GIB)))
    assert plan.knobs == ()
    assert "No single setting makes it fit" in refusal(plan)


def test_the_table_is_aligned_and_holds_every_line_the_total_and_the_budget() -> None:
    plan = make_plan(inputs(GIB, scratch=100 * MIB, models=(ModelNeed("a", MIB, pinned=False),), reserved=False))
    header, *rows = render(plan).splitlines()
    assert header.split() == ["LINE", "SIZE", "BYTES", "MINIMUM", "SOURCE", "SETTING"]
    assert [row.split("  ")[0] for row in rows] == [*(line.name for line in plan.lines), "total", "budget"]
    column = header.index("BYTES") + len("BYTES")
    for row, line in zip(rows, plan.lines, strict=False):
        assert row[:column].split()[-1] == str(line.nbytes)
    assert "accounted but not reserved on cpu" in render(plan)
    assert "executables of 1 model, measured" in render(plan)
    assert "0 pinned models" in render(plan)
    assert refusal(make_plan(inputs(MIB, models=pinned(GIB)))) in render(make_plan(inputs(MIB, models=pinned(GIB))))


def test_what_the_driver_counts_replaces_the_context_and_slack_takes_the_difference() -> None:
    before = make_plan(inputs(8 * GIB, context=700 * MIB, code=MIB, scratch=GIB))
    used = before.budget - before.line(SLACK) - 90 * MIB
    after = observed(before, used=used, code=before.line(CODE))
    assert after.line(CONTEXT) == before.line(CONTEXT) - 90 * MIB
    assert after.line(SLACK) == before.line(SLACK) + 90 * MIB
    assert sum(line.nbytes for line in after.lines) == before.budget
    assert after.warnings == before.warnings


def test_a_process_that_holds_more_than_its_budget_is_warned_of() -> None:
    before = make_plan(inputs(8 * GIB, context=700 * MIB, code=MIB, scratch=GIB))
    after = observed(before, used=before.budget + MIB, code=before.line(CODE))
    assert after.line(SLACK) == 0
    assert f"holds {MIB} bytes of device memory beyond its budget" in after.warnings[-1]
