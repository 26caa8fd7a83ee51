# SPDX-License-Identifier: Apache-2.0
"""The host memory plan of a real worker: what it refuses starts with each value that it names, and is previewed the same."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from helpers.running_worker import assigned
from helpers.small_bundles import pack_small

from ballast_contract.quantities import parse_api
from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_worker.control import preview
from ballast_worker.control.hostbudget import HostFacts
from ballast_worker.control.journal import Culprit
from ballast_worker.control.machine import Machine
from ballast_worker.control.quarantine import Quarantine
from ballast_worker.control.standalone import Folder

MI = 1 << 20
LIMIT = "the container's memory limit"
LOW = HostFacts(Path("/dev/shm"), 1 << 40, 1 << 40, 280 * MI, 280 * MI)
SMALL = HostFacts(Path("/dev/shm"), 40 * MI, 40 * MI, None, 1 << 40)


def set_to(config_for, facts, knob):
    """The configuration and the machine with one setting changed."""
    value = parse_api(knob.value)
    if knob.key == "host.budget":
        return config_for(managed=True, host={"budget": value}), facts
    if knob.key == "device.budget":
        return config_for(managed=True, device={"budget": value}), facts
    if knob.key == "workers.resources.limits.memory":
        return config_for(managed=True), replace(facts, limit=value + 64 * MI)
    return config_for(managed=True), replace(facts, mount_total=value)


@pytest.mark.parametrize(
    ("facts", "reason", "keys"),
    [
        (LOW, Reason.INSUFFICIENT_HOST_MEMORY, {"workers.resources.limits.memory"}),
        (replace(LOW, limit=300 * MI), Reason.INSUFFICIENT_HOST_MEMORY, {"workers.resources.limits.memory", "device.budget"}),
        (SMALL, Reason.SHM_TOO_SMALL, {"host.budget", "the node's /dev/shm"}),
    ],
    ids=["limit", "arena", "mount"],
)  # fmt: skip
def test_each_value_that_a_refused_worker_names_makes_it_start(config_for, start, small_bundle, facts, reason, keys):
    sharing = {"sharing": "node"} if facts is SMALL else {}

    def configured(*, host=None, **sections):
        return config_for(host={**sharing, **(host or {})}, **sections)

    config = configured(managed=True)
    refused = start(config, machine=Machine(config, host=lambda _: facts))
    refused.assign()
    state = refused.until(lambda state: state.condition.phase == pb.WORKER_PHASE_REFUSED)
    assert state.condition.failure.reason == reason
    plan = refused.control.GetPlan(pb.GetPlanRequest()).plan
    assert plan.fits
    assert not plan.host.fits
    assert str(plan.host.shortfall_bytes) in state.condition.failure.message
    assert {knob.key for knob in plan.host.knobs} == keys
    assert json.loads(refused.page("/plan")[1])["host"]["shortfall_bytes"] == str(plan.host.shortfall_bytes)
    assert refused.metric("worker_host_plan_shortfall_bytes") == plan.host.shortfall_bytes
    refused.stop()
    for knob in plan.host.knobs:
        changed, found = set_to(configured, facts, knob)
        worker = start(changed, machine=Machine(changed, host=lambda _, found=found: found))
        worker.assign(assigned(small_bundle, "m"), generation=2)
        worker.until_model("m", pb.MODEL_PHASE_LOADED)
        assert worker.infer("m") == [2.0, 4.0, 6.0, 8.0]
        worker.stop()


def test_each_value_that_a_worker_without_an_operator_names_makes_it_start(config_for, start):
    facts = replace(LOW, limit=300 * MI)
    config = config_for()
    refused = start(config, machine=Machine(config, host=lambda _: facts))
    refused._thread.join(60)
    assert refused.exit_code == 3
    knobs = {knob.key: parse_api(knob.value) for knob in refused.worker.view().host_plan.knobs}
    assert knobs.keys() == {"host.budget", "device.budget", LIMIT}
    for changed, limit in (
        (config_for(host={"budget": knobs["host.budget"]}), facts.limit),
        (config_for(device={"budget": knobs["device.budget"]}), facts.limit),
        (config, knobs[LIMIT]),
    ):
        worker = start(changed, machine=Machine(changed, host=lambda _, limit=limit: replace(facts, limit=limit)))
        assert worker.worker.ready.wait(60)
        worker.stop()


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "models").mkdir()
    pack_small(tmp_path / "models" / "a")
    return tmp_path / "models"


def command(config, tmp_path, *arguments):
    """`ballast-worker` with these arguments, to its end."""
    file = tmp_path / "worker.json"
    file.write_text(config.model_dump_json(by_alias=True))
    line = [sys.executable, "-m", "ballast_worker.control.main", "--config", str(file), *arguments]
    return subprocess.run(line, capture_output=True, text=True, check=False)


def test_a_budget_that_no_start_can_have_is_refused_by_the_preview_too(config_for, tmp_path, folder):
    host = {"directory": "/dev/shm/ballast-is-never-made", "budget": "4t"}
    config = config_for(model_directory=str(folder), host=host)
    started, table, data = (command(config, tmp_path, *given) for given in ([], ["plan"], ["plan", "--json"]))
    assert (started.returncode, table.returncode, data.returncode) == (3, 3, 3)
    assert "ShmTooSmall" in started.stderr
    assert "host.budget=" in table.stdout
    for line in ("host pool", "copy ring", "arena", "process", "memory limit", "shared memory"):
        assert line in table.stdout
    plan = json.loads(data.stdout)
    assert plan["fits"]
    assert not plan["host"].get("fits")
    assert not Path(host["directory"]).exists()


def test_a_quarantined_model_is_left_out_of_the_preview_and_a_changed_one_is_not(config_for, folder):
    config = config_for(model_directory=str(folder), device={"budget": "32m"})
    models = Folder(config).scan()
    config.state_directory.mkdir()
    quarantine = Quarantine(config.state_directory)
    for _ in range(2):
        quarantine.blame([Culprit("a", "static")], models)
    before = quarantine.path.read_bytes()

    found = preview.plan(config, Machine(config), say=lambda _: None)
    assert found.refused["a"].reason is Reason.QUARANTINED
    assert found.fits

    pack_small(folder / "a", factor=3)
    assert preview.plan(config, Machine(config), say=lambda _: None).refused == {}
    assert quarantine.path.read_bytes() == before, "a preview changes nothing"
