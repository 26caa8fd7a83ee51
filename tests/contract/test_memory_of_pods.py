# SPDX-License-Identifier: Apache-2.0
"""The memory limit that the operator sets, and the host plan that a worker makes below it, agree."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from ballast_contract.quantities import parse_api
from ballast_operator.api.weightbudget import WeightBudgetSpec
from ballast_operator.reconcile import host_memory
from ballast_operator.reconcile.worker_config import worker_config
from ballast_worker.control.hostbudget import HostFacts
from ballast_worker.control.hostplan import HostPlan
from ballast_worker.control.machine import Machine

MI, GI = 1 << 20, 1 << 30
SAMPLE = Path(__file__).parents[2] / "e2e/samples/budget.yaml"
STORES = [{"persistentVolumeClaim": {"claimName": "models"}}]


def planned(spec: dict) -> HostPlan:
    """The plan of a worker without models in the pod that the operator makes, alone on a node with enough memory."""
    found = WeightBudgetSpec.model_validate(spec)
    _, memory = host_memory.memory(found, workers=1)
    limit = None if memory is None else parse_api(memory)
    facts = HostFacts(Path("/dev/shm/ballast"), 64 * GI, 64 * GI, limit, limit or 64 * GI)
    machine = Machine(worker_config(found), host=lambda _: facts)
    made = machine.host_plan(0, None, workers=1)
    assert made.limit == limit
    return made


def pool(memory: str, budget: str) -> dict:
    workers = {"backend": "cpu", "resources": {"limits": {"memory": memory}}}
    return {"workers": workers, "modelStores": STORES, "host": {"budget": budget}}


def test_the_sample_budget_has_all_that_a_worker_is_advised_to_have():
    spec = yaml.safe_load(SAMPLE.read_text())["spec"]
    made = planned(spec)
    assert (made.fits, made.warnings) == (True, ())
    assert {line.name: line.nbytes for line in made.lines}["left"] > parse_api(spec["device"]["budget"])


@pytest.mark.parametrize("budget", ["auto", "0", "64Mi", "40Gi", "unlimited"])
def test_the_limit_that_a_refused_worker_names_is_enough_when_its_user_sets_it(budget):
    refused = planned(pool("100Mi", budget))
    assert [knob.key for knob in refused.knobs] == ["workers.resources.limits.memory"]
    assert refused.knobs[0].current == "100Mi"
    assert planned(pool(refused.knobs[0].value, budget)).fits


@pytest.mark.parametrize("budget", ["auto", "1Gi", "16Gi"])
def test_what_a_worker_needs_beside_its_copies_does_not_grow_with_them(budget):
    assert planned(pool("512Mi", budget)).fits
