# SPDX-License-Identifier: Apache-2.0
"""A simulated pool serves the models of its WeightBudget and no others, each name once."""

from __future__ import annotations

import pytest

from ballast_operator.edge.simulation_input import InputError
from ballast_operator.edge.simulation_objects import Entry
from ballast_operator.edge.simulation_pool import called, of_budget, single


def budget(name="default", namespace=""):
    return Entry(f"b.yaml, WeightBudget '{name}'", name, namespace, {})


def model(name, namespace="", of="default", **spec):
    body = {"spec": {"budgetRef": {"name": of}, "source": {"uri": "pvc://m/a"}, **spec}}
    return Entry(f"m.yaml, InferenceModel '{name}'", name, namespace, body)


def chosen(pool, *models):
    found, others = of_budget(models, pool, "m.yaml")
    return [(one.entry.namespace, one.entry.name) for one in found], dict(others)


def test_models_of_another_budget_or_namespace_are_left_out_and_counted():
    entries = [model("a", "x"), model("a", "y"), model("b", "x"), model("c", "x", of="big"), model("d", "x", of="big")]
    assert chosen(budget(namespace="x"), *entries) == (
        [("x", "a"), ("x", "b")],
        {"y/default": 1, "x/big": 2},
    )


@pytest.mark.parametrize("namespaces", [("x", ""), ("", "x"), ("", "")])
def test_a_namespace_that_is_left_out_is_that_of_the_other(namespaces):
    of_model, of_pool = namespaces
    assert chosen(budget(namespace=of_pool), model("a", of_model)) == ([(of_model, "a")], {})


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ([model("a", "x"), model("a", "y")], r"in the namespaces x, y: write metadata.namespace in b.yaml"),
        ([model("a"), model("a")], "InferenceModel 'a' twice: keep one"),
        ([model("a"), model("b"), model("a")], "InferenceModel 'a' twice: keep one"),
        ([model("a", modelName="n"), model("b", modelName="n")], "'a' and 'b' are both called 'n'.*keep one"),
        ([model("a"), model("b", modelName="a")], "'a' and 'b' are both called 'a'"),
        ([model("a", of="big")], r"no model of b.yaml, WeightBudget 'default'; it has those of big: look at"),
        ([model("a", of=None)], r"m.yaml, InferenceModel 'a': spec: 'budgetRef.name'"),
    ],
)
def test_models_that_cannot_be_in_one_pool_are_named(entries, words):
    with pytest.raises(InputError, match=words):
        chosen(budget(), *entries)


def test_models_of_other_namespaces_alone_are_none():
    with pytest.raises(InputError, match=r"'default' in namespace x; it has those of y/default"):
        chosen(budget(namespace="x"), model("a", "y"))


def test_several_budgets_are_one_too_many():
    with pytest.raises(InputError, match=r"b.yaml has 2 WeightBudgets \(x/default, big\): keep one"):
        single([budget(namespace="x"), budget("big")], "b.yaml")


def test_what_clients_call_comes_before_names_of_objects():
    found, _ = of_budget([model("a", modelName="b"), model("b", modelName="c")], budget(), "m.yaml")
    assert called(found) == {"a": "a", "b": "a", "c": "b"}
