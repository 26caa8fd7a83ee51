# SPDX-License-Identifier: Apache-2.0
"""Commands by annotation, demand, and two operators at once."""

from __future__ import annotations

import asyncio
import dataclasses

import pytest
from helpers.fake_worker import MIB
from helpers.operator_rig import BUDGETS, CONFIG_MAPS, LEASES, MODELS, Rig

from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.edge.preflight import PreflightError
from ballast_operator.edge.uninstall import strip_finalizers

pytestmark = pytest.mark.apiserver


async def _last(rig: Rig, field: str, token: str) -> dict:
    async def look() -> dict | None:
        found = (await rig.get(BUDGETS, "default"))["status"].get(field, {})
        return found if found.get("token") == token else None

    return await rig.until(look)


async def test_a_compaction_slides_by_default_and_reports_before_and_after(pool: Rig):
    await pool.budget(replicas=2)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    for worker in pool.workers.values():
        device = pb.DeviceState()
        device.CopyFrom(worker.device)
        device.largest_free_bytes = 128 * MIB
        worker.change(device=device)
    await pool.annotate(BUDGETS, "default", compact="tuesday")
    done = await _last(pool, "lastCompaction", "tuesday")
    assert done["mode"] == "move"
    assert (done["workers"], done["failedWorkers"]) == (2, 0)
    assert (done["largestFreeBefore"], done["largestFreeAfter"]) == ("128Mi", "512Mi")
    assert (done["fragmentationPercentBefore"], done["fragmentationPercentAfter"]) == (75, 0)
    assert done["moved"] == "80Mi"

    async def figures() -> bool:
        return (await pool.get(BUDGETS, "default"))["status"]["device"]["fragmentationPercent"] == 0

    await pool.until(figures)
    for worker in pool.workers.values():
        [request] = worker.calls("CompactMemory")
        assert request.mode == pb.COMPACTION_MODE_MOVE
    note = "2 workers compacted (move): the largest free block was 128Mi and is 512Mi, fragmentation 75 % and 0 %, 80Mi moved"
    assert ("Normal", "Compacted", note) in await pool.until(lambda: pool.events("default"))


async def test_a_preload_reloads_the_assigned_models_largest_first(pool: Rig):
    def prepare(worker) -> None:
        worker.bundles.update({"pvc://models/small": MIB, "pvc://models/large": 90 * MIB})

    pool.prepare = prepare
    await pool.budget(placement={"compaction": {"mode": "preload", "everyRepacks": 1000}})
    for name, residency in (("small", "unpinned"), ("large", "unpinned"), ("fixed", "device")):
        await pool.model(name, residency=residency)
    for name in ("small", "large", "fixed"):
        await pool.until_condition(MODELS, name, "Ready", "True")
    await pool.annotate(BUDGETS, "default", compact="1")
    assert (await _last(pool, "lastCompaction", "1"))["reloadedModels"] == 2
    [worker] = pool.workers.values()
    [request] = worker.calls("CompactMemory")
    assert (request.mode, list(request.reload_models)) == (pb.COMPACTION_MODE_FREE, ["large", "small"])


async def test_a_worker_that_cannot_compact_is_counted_and_named(pool: Rig):
    await pool.budget(replicas=2)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    broken = next(iter(pool.workers.values()))

    async def refuse(request, context) -> pb.CompactMemoryResponse:
        await context.abort(14, "an execution will not end")  # UNAVAILABLE

    broken.CompactMemory = refuse
    await broken.stop()
    await broken.start()
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    await pool.annotate(BUDGETS, "default", compact="x")
    done = await _last(pool, "lastCompaction", "x")
    assert (done["workers"], done["failedWorkers"]) == (1, 1)
    assert broken.name in done["message"]


async def test_a_repack_is_done_once_for_each_token_and_moves_what_demand_has_moved(pool: Rig):
    await pool.budget(replicas=2, placement={"hysteresisPercent": 0})
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    names = ("one", "two", "three", "four")
    for name in names:
        await pool.model(name)
    for name in names:
        await pool.until_condition(MODELS, name, "Ready", "True")
    await pool.annotate(BUDGETS, "default", repack="a")
    first = await _last(pool, "lastRepack", "a")
    assert (first["trigger"], first["modelsPlaced"]) == ("request", 4)

    crowded = next(w for w in pool.workers.values() if w.models)
    for state in list(crowded.models.values()):
        busy = pb.ModelState()
        busy.CopyFrom(state)
        busy.requests_total, busy.compute_seconds_total = 1000, 20.0
        crowded.change(busy)
    await pool.annotate(BUDGETS, "default", repack="b")
    await _last(pool, "lastRepack", "b")

    async def demand() -> bool:
        return "demand.json" in (await pool.get(CONFIG_MAPS, "default-demand"))["data"]

    await pool.until(demand)
    for name in names:
        await pool.until_condition(MODELS, name, "Ready", "True")


async def test_device_time_causes_a_repack_by_itself(pool: Rig):
    await pool.budget(placement={"repack": {"firstAfterComputeSeconds": 5, "everyComputeSeconds": 1000}})
    await pool.model("busy")
    await pool.until_condition(MODELS, "busy", "Ready", "True")
    [worker] = pool.workers.values()

    async def worked() -> bool:
        state = pb.ModelState()
        state.CopyFrom(worker.models["busy"])
        state.requests_total += 10
        state.compute_seconds_total += 3.0
        worker.change(state)
        await pool.annotate(BUDGETS, "default", look=str(state.requests_total))
        return (await pool.get(BUDGETS, "default"))["status"]["lastRepack"]["trigger"] == "compute"

    await pool.until(worked)


async def test_a_standby_takes_over_when_the_leader_gives_up(bare: Rig):
    first = bare.start_operator()
    await bare.budget()
    await bare.until_condition(BUDGETS, "default", "Ready", "True")
    second = bare.start_operator()
    await bare.until(lambda: _stage(second, "waiting for the Lease"))
    await asyncio.to_thread(first.stop)
    await bare.model("minilm")
    await bare.until_condition(MODELS, "minilm", "Ready", "True", seconds=15)
    assert not second.lost


async def _stage(operator, text: str) -> bool:
    return text in operator.health.stage


async def test_a_leader_whose_lease_is_taken_says_so(bare: Rig):
    leader = bare.start_operator()
    await bare.until(lambda: _stage(leader, "leading"))
    lease = await bare.client.get(LEASES, bare.namespace, "ballast-operator")
    lease["spec"] |= {"holderIdentity": "somebody-else", "leaseTransitions": lease["spec"]["leaseTransitions"] + 1}
    await bare.client.replace(LEASES, lease)

    async def lost() -> bool:
        return leader.lost == ["the Lease was lost"]

    await bare.until(lost, seconds=12)


async def test_finalizers_are_stripped_and_stay_so_while_the_operator_still_runs(bare: Rig):
    """The operator goes first, nothing blocks afterwards. zalando-incubator/kopf#75, nolar/kopf#1104."""
    leader = bare.start_operator()
    await bare.budget()
    await bare.until_condition(BUDGETS, "default", "Ready", "True")
    assert (await bare.get(BUDGETS, "default"))["metadata"]["finalizers"] == ["ballast.dev/finalizer"]
    await asyncio.to_thread(leader.stop)
    stripping = dataclasses.replace(leader.arguments, command="strip-finalizers")
    assert await strip_finalizers(stripping) == 1
    assert "finalizers" not in (await bare.get(BUDGETS, "default"))["metadata"]
    lease = await bare.client.get(LEASES, bare.namespace, "ballast-operator")
    assert lease["spec"]["holderIdentity"].startswith("uninstall_")
    after = bare.start_operator()
    await bare.delete(BUDGETS, "default")
    assert await bare.get(BUDGETS, "default") is None
    assert "waiting for the Lease" in after.health.stage


async def test_a_leader_that_goes_on_running_puts_no_finalizer_back_and_writes_nothing_any_more(bare: Rig):
    """The process of this rig does not end when its Lease is lost, as one that was stopped for a while would not have yet."""
    leader = bare.start_operator()
    await bare.budget()
    await bare.until_condition(BUDGETS, "default", "Ready", "True")
    assert await strip_finalizers(dataclasses.replace(leader.arguments, command="strip-finalizers")) == 1
    await bare.budget(replicas=2)

    async def refused() -> bool:
        return bool(leader.registry.get_sample_value("ballast_operator_reconcile_failures_total", {"kind": "budget"}))

    await bare.until(refused)
    assert leader.lost == ["the Lease was lost"]
    assert "finalizers" not in (await bare.get(BUDGETS, "default"))["metadata"]
    assert len(await bare.pods()) == 1


async def test_missing_rights_are_a_fatal_message_that_names_them(bare: Rig):
    """`watch` is missing from the role."""
    operator = bare.start_operator(kubeconfig=await bare.powerless())
    await asyncio.to_thread(operator.join)
    assert isinstance(operator.error, PreflightError)
    assert f"watch inferencemodels.ballast.dev in namespace {bare.namespace}" in str(operator.error)
    operator.error = None
