# SPDX-License-Identifier: Apache-2.0
"""Objects as kubectl prints them and as people write them; what is none is named with file, place, value and what to write."""

from __future__ import annotations

import json

import pytest
import yaml

from ballast_operator.api.weightbudget import WeightBudgetSpec
from ballast_operator.edge.simulation_input import InputError
from ballast_operator.edge.simulation_objects import objects

KIND = "WeightBudget"
BUDGET = {
    "apiVersion": "ballast.dev/v1alpha1",
    "kind": KIND,
    "metadata": {"name": "default", "namespace": "prod"},
    "spec": {"workers": {"replicas": 2}},
}
TEXT = yaml.safe_dump(BUDGET)
LIST = {"apiVersion": "v1", "kind": "List", "items": [BUDGET], "metadata": {"resourceVersion": ""}}


@pytest.fixture
def read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def run(given: str | bytes):
        (tmp_path / "x.yaml").write_bytes(given.encode() if isinstance(given, str) else given)
        return objects("x.yaml", KIND)

    return run


@pytest.mark.parametrize(
    "given",
    [
        TEXT,
        json.dumps(BUDGET, indent=4),
        yaml.safe_dump(LIST),
        yaml.safe_dump({"kind": "WeightBudgetList", "items": [BUDGET]}),
        f"---\n{TEXT}---\n# nothing\n---\nkind: Secret\n",
        TEXT.replace("apiVersion: ballast.dev/v1alpha1\n", ""),
        TEXT.encode("utf-16"),
        TEXT.encode("utf-8-sig"),
        "kind: List\nitems:\n- &a {kind: WeightBudget, metadata: {name: default, namespace: prod, also: *a}}\n",
    ],
)
def test_an_object_is_found_however_it_is_written(read, given):
    (found,) = read(given)
    assert (found.where, found.namespace) == ("x.yaml, WeightBudget 'default'", "prod")


@pytest.mark.parametrize("given", ["", "# nothing\n", "---\n---\n", "kind: List\nitems:\n", "kind: List\nitems: []\n"])
def test_a_file_with_nothing_says_what_to_fill_it_with(read, given):
    with pytest.raises(
        InputError, match=r"x.yaml has no WeightBudget; it has nothing: write what `kubectl get weightbudgets"
    ):
        read(given)


def test_a_file_of_other_kinds_says_which(read):
    with pytest.raises(InputError, match="it has Pod, WeightBudgets"):
        read("kind: Pod\n---\nkind: WeightBudgets\n")


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ("hello", "document 1 is 'hello', and no keys with values"),
        ("- a\n", "document 1 is a list"),
        (f"{TEXT}---\n3\n", "document 2 is '3'"),
        ("a: 1\n", "document 1: kind is left out: write what `kubectl get"),
        ("kind: [a]\n", "document 1: kind is a list"),
        ("kind: List\nitems: 3\n", "document 1: items is '3': write a list of objects"),
        ("kind: List\nitems: [3]\n", "document 1 item 1 is '3'"),
        ("kind: List\nitems: [null]\n", "document 1 item 1: kind is left out"),
        ("kind: WeightBudget\n", "metadata.name of this WeightBudget is left out: write its name"),
        ("kind: WeightBudget\nmetadata:\n", "metadata.name of this WeightBudget is left out"),
        ("kind: WeightBudget\nmetadata: {name: 5}\n", "metadata.name of this WeightBudget is '5'"),
        ("kind: WeightBudget\nmetadata: {name: ''}\n", "metadata.name of this WeightBudget is ''"),
        ("kind: WeightBudget\nmetadata: x\n", "document 1: metadata is 'x'"),
        (TEXT.replace("prod", "[prod]"), "metadata.namespace of WeightBudget 'default' is a list"),
        (TEXT.replace("v1alpha1", "v1"), "is 'ballast.dev/v1': write ballast.dev/v1alpha1"),
        (f"{TEXT}kind: Pod\n", "line 9: 'kind' is given twice: keep one"),
        ("a: [1\n", "line 2 is no YAML: did not find expected ',' or ']'"),
        ("a: 2024-13-45\n", r"a number or a date that cannot be read \(month must be in 1..12\)"),
        (f"a: {'9' * 5000}\n", "a number or a date that cannot be read"),
        ("!!python/object:os.system x\n", "line 1 is no YAML: could not determine a constructor"),
        ("? [a]\n: b\n", "line 1 is no YAML: found unhashable key"),
        ("\0", "is no YAML"),
        ("[" * 5000, "is no YAML|cannot be read"),
        (b"\xff", "is no text at byte 0: save it as UTF-8"),
    ],
)
def test_what_is_no_object_is_named_with_its_place(read, given, words):
    with pytest.raises(InputError, match=rf"^x.yaml.*{words}"):
        read(given)


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("3", "is '3', and no keys"),
        ("[a]", "is a list, and no keys"),
        ("{workers: {replicas: .nan}}", r"'workers.replicas': .* \(got nan\)"),
        ("{workers: {replicas: 1e99}}", "'workers.replicas'"),
        ("{device: {budget: 1e400}}", "'1e400' is not a size"),
        ("{device: {bugdet: 1Gi}}", "did you mean 'device.budget'"),
        ("{1: 2}", "'1': Keys should be strings"),
        ("&a {workers: *a}", "'workers.workers'"),
    ],
)
def test_a_part_that_breaks_a_rule_is_named_with_its_object(read, spec, words):
    (found,) = read(f"kind: WeightBudget\nmetadata: {{name: default}}\nspec: {spec}\n")
    with pytest.raises(InputError, match=rf"^x.yaml, WeightBudget 'default': spec.*{words}"):
        found.read(WeightBudgetSpec, "spec")


def test_a_part_that_is_left_out_means_its_defaults(read):
    (found,) = read("kind: WeightBudget\nmetadata: {name: default}\nspec:\n")
    assert found.read(WeightBudgetSpec, "spec") == WeightBudgetSpec()
