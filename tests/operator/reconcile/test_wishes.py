# SPDX-License-Identifier: Apache-2.0
"""What is accepted, beyond what the schema says."""

from __future__ import annotations

import pytest
from helpers.reconcile_objects import Builder

from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.api.inferencemodel import InferenceModelSpec
from ballast_operator.reconcile.unknown_fields import LAST_APPLIED, unknown_fields
from ballast_operator.reconcile.wishes import Model, judge_model, paused


def test_an_accepted_model_becomes_what_a_worker_is_told(build: Builder):
    model = build.model("minilm", modelName="acme/minilm", residency="system", batching={"maxSize": 8})
    message = model.message()
    assert (message.name, message.object, message.uri) == ("acme/minilm", "ns/minilm", "pvc://models/minilm")
    assert message.residency == pb.RESIDENCY_SYSTEM
    assert message.batching.max_size == 8


def test_a_model_without_a_budget_is_not_accepted(build: Builder):
    obj = build.model_object()
    verdict = judge_model(obj, budget=None, namesakes=[obj])
    assert verdict.reason is Reason.BUDGET_NOT_FOUND
    assert "'default' does not exist in namespace 'ns'" in verdict.message


def test_a_budget_on_its_way_out_accepts_nothing(build: Builder):
    obj, budget = build.model_object(), build.budget_object()
    budget["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    verdict = judge_model(obj, budget=budget, namesakes=[obj])
    assert verdict.reason is Reason.BUDGET_NOT_FOUND
    assert "is being deleted" in verdict.message


@pytest.mark.parametrize(
    ("mine", "theirs", "mine_keeps"),
    [
        (("a", "2026-01-01T00:00:00Z"), ("b", "2026-01-01T00:00:01Z"), True),
        (("a", "2026-01-01T00:00:02Z"), ("b", "2026-01-01T00:00:01Z"), False),
        (("a", "2026-01-01T00:00:00Z"), ("b", "2026-01-01T00:00:00Z"), True),
        (("c", "2026-01-01T00:00:00Z"), ("b", "2026-01-01T00:00:00Z"), False),
    ],
)
def test_the_older_keeps_a_name_and_of_two_alike_the_first_in_the_alphabet(build: Builder, mine, theirs, mine_keeps):
    objs = []
    for name, created in (mine, theirs):
        obj = build.model_object(name, modelName="shared")
        obj["metadata"]["creationTimestamp"] = created
        objs.append(obj)
    verdict = judge_model(objs[0], budget=build.budget_object(), namesakes=objs)
    assert isinstance(verdict, Model) is mine_keeps
    if not mine_keeps:
        assert verdict.reason is Reason.NAME_CONFLICT
        assert "'b'" in verdict.message


def test_a_namesake_on_its_way_out_keeps_no_name(build: Builder):
    old, new = build.model_object("old", modelName="x"), build.model_object("new", modelName="x")
    old["metadata"]["creationTimestamp"] = "2020-01-01T00:00:00Z"
    old["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    assert isinstance(judge_model(new, budget=build.budget_object(), namesakes=[old, new]), Model)


def test_a_claim_that_is_not_listed_is_refused_and_a_file_needs_none(build: Builder):
    obj = build.model_object(source={"uri": "pvc://elsewhere/x"})
    verdict = judge_model(obj, budget=build.budget_object(), namesakes=[obj])
    assert verdict.reason is Reason.MODEL_STORE_NOT_FOUND
    assert "it lists models" in verdict.message
    obj = build.model_object(source={"uri": "file:///opt/x"})
    assert isinstance(judge_model(obj, budget=build.budget_object(), namesakes=[obj]), Model)


def test_a_model_that_workers_hold_is_not_taken_from_them_for_a_source_they_cannot_read(build: Builder):
    obj = build.model_object(source={"uri": "pvc://elsewhere/x"})
    assert isinstance(judge_model(obj, budget=build.budget_object(), namesakes=[obj], placed=True), Model)


def test_a_stored_spec_that_cannot_be_read_is_refused_in_words(build: Builder):
    obj = build.model_object(residency="gpu")
    verdict = judge_model(obj, budget=build.budget_object(), namesakes=[obj])
    assert verdict.reason is Reason.INVALID_SPEC
    assert "'residency'" in verdict.message


def test_a_spec_is_parsed_once_for_each_generation(build: Builder):
    obj = build.model_object()
    budget = build.budget_object()
    first = judge_model(obj, budget=budget, namesakes=[obj])
    again = judge_model({**obj, "status": {"replicas": 1}}, budget=budget, namesakes=[obj])
    assert first.spec is again.spec


@pytest.mark.parametrize(("value", "held"), [("true", True), ("", False), ("false", False), ("No", False), ("x", True)])
def test_a_pause_annotation_holds_unless_it_is_empty_or_says_no(build: Builder, value, held):
    obj = build.model_object()
    obj["metadata"]["annotations"] = {"ballast.dev/paused": value}
    assert paused(obj) is held


def applied(text: str) -> dict:
    return {"metadata": {"annotations": {LAST_APPLIED: text}}}


def test_dropped_fields_are_named_at_their_place(build: Builder):
    text = '{"spec": {"modelName": "a", "sourc": {}, "source": {"url": "x"}, "replica": 2, "mem_fraction": 1}}'
    found = unknown_fields(applied(text), InferenceModelSpec)
    assert "unknown key 'spec.sourc': did you mean 'spec.source'?" in found
    assert "unknown key 'spec.replica': did you mean 'spec.replicas'?" in found
    assert any("spec.source.url" in sentence for sentence in found)
    assert any("its name here is device.budget" in sentence for sentence in found)


@pytest.mark.parametrize("text", ["", "not json", "[]", '{"spec": null}', '{"spec": {"replicas": 1}}'])
def test_nothing_is_said_where_nothing_was_dropped(text):
    assert unknown_fields(applied(text), InferenceModelSpec) == []
