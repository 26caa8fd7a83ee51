# SPDX-License-Identifier: Apache-2.0
"""Models from apply to answer, and everything a user can get wrong on the way."""

from __future__ import annotations

import pytest
from helpers.fake_worker import MIB
from helpers.operator_rig import BUDGETS, ENDPOINT_SLICES, MODELS, SERVICES, Rig, rig

from ballast_contract.v1 import control_pb2 as pb

pytestmark = pytest.mark.apiserver


async def test_a_budget_and_a_model_become_pods_service_endpoints_and_status(pool: Rig):
    await pool.budget(replicas=2)
    await pool.model("minilm", residency="device", modelName="all-MiniLM-L6-v2")
    await pool.until_condition(MODELS, "minilm", "Ready", "True", "Ready")
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")

    status = (await pool.get(MODELS, "minilm"))["status"]
    [worker] = status["workers"]
    assert status["residency"] == "device"
    assert (status["replicas"], status["readyReplicas"]) == (1, 1)
    assert status["workerNames"] == worker["name"]
    assert worker["tier"] == "device"
    assert status["size"] == {
        "weights": "10Mi",
        "largestTensor": "5Mi",
        "scratch": "5Mi",
        "code": "1Mi",
        "measured": True,
    }
    assert status["assignment"]["workers"] == [worker["name"]]
    assert status["address"]["http"] == f"http://minilm.{pool.namespace}.svc:8000"
    assert {c["type"]: c["status"] for c in status["conditions"]} == {
        "Accepted": "True",
        "Placed": "True",
        "Loaded": "True",
        "Ready": "True",
        "Degraded": "False",
    }
    assert all(c["observedGeneration"] == 1 for c in status["conditions"])

    service = await pool.get(SERVICES, "minilm")
    assert "selector" not in service["spec"]
    assert [port["port"] for port in service["spec"]["ports"]] == [8000, 8001]
    [held] = await pool.list(ENDPOINT_SLICES)
    pod = next(p for p in await pool.pods() if p["metadata"]["name"] == worker["name"])
    [endpoint] = held["endpoints"]
    assert endpoint["targetRef"]["uid"] == pod["metadata"]["uid"]
    assert endpoint["nodeName"] == pod["spec"]["nodeName"]
    assert endpoint["addresses"] == [pod["status"]["podIP"]]
    assert held["metadata"]["labels"]["endpointslice.kubernetes.io/managed-by"] == "operator.ballast.dev"
    assert await pool.get(SERVICES, "default-pool") is not None
    assert (await pool.get(SERVICES, "default-workers"))["spec"]["clusterIP"] == "None"

    async def told() -> bool:
        return ("Normal", "Ready", "1 of 1 copies answer") in await pool.events("minilm")

    await pool.until(told)

    assigned = pool.workers[worker["name"]].calls("ApplyAssignment")[-1]
    [told] = assigned.models
    assert (told.name, told.object) == ("all-MiniLM-L6-v2", f"{pool.namespace}/minilm")
    for each in pool.workers.values():
        assert each.routes == {"all-MiniLM-L6-v2": [worker["name"]]}


async def test_the_older_model_keeps_the_name_and_the_newer_gets_it_when_the_older_goes(pool: Rig):
    await pool.budget()
    await pool.model("first", modelName="shared")
    await pool.until_condition(MODELS, "first", "Ready", "True")
    await pool.model("second", modelName="shared")
    message = await pool.until_condition(MODELS, "second", "Accepted", "False", "NameConflict")
    assert "'shared' belongs to InferenceModel 'first'" in message
    assert (await pool.condition(MODELS, "first", "Ready"))[0] == "True"
    assert await pool.endpoints("second") == {}
    await pool.delete(MODELS, "first")
    await pool.until_condition(MODELS, "second", "Ready", "True")


async def test_a_model_waits_for_its_budget_and_survives_its_deletion(pool: Rig):
    """What a model refers to goes first."""
    await pool.model("minilm")
    message = await pool.until_condition(MODELS, "minilm", "Accepted", "False", "BudgetNotFound")
    assert f"WeightBudget 'default' does not exist in namespace '{pool.namespace}'" in message
    await pool.budget()
    await pool.until_condition(MODELS, "minilm", "Ready", "True")
    await pool.delete(BUDGETS, "default")
    await pool.until_condition(MODELS, "minilm", "Ready", "False", "BudgetNotFound")

    async def gone() -> bool:
        return await pool.get(BUDGETS, "default") is None and await pool.endpoints("minilm") == {}

    await pool.until(gone)
    await pool.budget()
    await pool.until_condition(MODELS, "minilm", "Ready", "True")


async def test_a_service_of_somebody_else_is_never_adopted(pool: Rig):
    await pool.apply(SERVICES, "minilm", {"ports": [{"name": "web", "port": 80, "protocol": "TCP"}]})
    theirs = await pool.get(SERVICES, "minilm")
    await pool.budget()
    await pool.model("minilm")
    message = await pool.until_condition(MODELS, "minilm", "Ready", "False", "ServiceConflict")
    assert "Service 'minilm' exists and was not made by Ballast" in message
    await pool.until_condition(MODELS, "minilm", "Degraded", "True", "ServiceConflict")
    status = (await pool.get(MODELS, "minilm"))["status"]
    assert status["address"]["grpc"] == f"default-pool.{pool.namespace}.svc:8001"
    assert (await pool.get(SERVICES, "minilm"))["metadata"]["resourceVersion"] == theirs["metadata"]["resourceVersion"]
    assert await pool.endpoints("minilm") == {}
    await pool.delete(SERVICES, "minilm")
    await pool.until_condition(MODELS, "minilm", "Ready", "True")


async def test_a_service_of_an_earlier_object_of_the_name_is_waited_for(pool: Rig):
    """Before the garbage collector came by, the old Service stays and is not taken over."""
    pool.collector = False
    await pool.budget()
    await pool.model("minilm")
    await pool.until_condition(MODELS, "minilm", "Ready", "True")
    old = (await pool.get(SERVICES, "minilm"))["metadata"]["uid"]
    await pool.delete(MODELS, "minilm")
    new = await pool.model("minilm")
    message = await pool.until_condition(MODELS, "minilm", "Ready", "False", "ServiceConflict")
    assert "earlier InferenceModel" in message
    await pool.collect()
    await pool.until_condition(MODELS, "minilm", "Ready", "True")
    service = await pool.get(SERVICES, "minilm")
    assert service["metadata"]["uid"] != old
    assert service["metadata"]["ownerReferences"][0]["uid"] == new["metadata"]["uid"]


async def test_a_claim_that_the_budget_does_not_list_is_named_with_the_nearest(pool: Rig):
    await pool.budget()
    await pool.model("minilm", uri="pvc://model/minilm")
    message = await pool.until_condition(MODELS, "minilm", "Accepted", "False", "ModelStoreNotFound")
    assert "names the claim 'model'" in message
    assert "did you mean 'models'?" in message
    await pool.model("minilm", uri="pvc://models/minilm")
    await pool.until_condition(MODELS, "minilm", "Ready", "True")


async def test_a_missing_source_is_never_ready_and_says_where(pool: Rig):
    """The file is not there."""
    seen: set[str] = set()
    pool.prepare = lambda worker: worker.missing.add("pvc://models/nowhere")
    await pool.budget()
    await pool.model("nowhere")

    async def look() -> bool:
        seen.add((await pool.condition(MODELS, "nowhere", "Ready"))[0])
        return (await pool.condition(MODELS, "nowhere", "Placed"))[1] == "SourceNotFound"

    await pool.until(look, seconds=10)
    assert "True" not in seen
    assert "nothing is at pvc://models/nowhere" in (await pool.condition(MODELS, "nowhere", "Ready"))[2]
    await pool.model("nowhere", uri="pvc://models/somewhere")
    await pool.until_condition(MODELS, "nowhere", "Ready", "True")


async def test_a_load_that_fails_shows_place_reason_and_exit_code_and_a_changed_spec_recovers(pool: Rig):
    """kaito-project/kaito#931, kaito-project/kaito#1493."""
    failure = pb.Failure(
        reason="LoadFailedPermanent", message="builder ran out of memory", permanent=True, exit_code=137
    )
    pool.prepare = lambda worker: worker.broken.update(greedy=failure)
    await pool.budget()
    await pool.model("greedy", residency="device")
    message = await pool.until_condition(MODELS, "greedy", "Ready", "False", "LoadFailedPermanent")
    [pod] = await pool.pods()
    assert message == f"worker {pod['metadata']['name']}: builder ran out of memory"
    await pool.until_condition(MODELS, "greedy", "Degraded", "True", "LoadFailedPermanent")
    failed = (await pool.get(MODELS, "greedy"))["status"]["lastFailure"]
    assert failed["exitCode"] == 137
    assert failed["worker"] == pod["metadata"]["name"]
    for worker in pool.workers.values():
        worker.broken.clear()
    await pool.model("greedy", residency="system")
    await pool.until_condition(MODELS, "greedy", "Ready", "True")
    status = (await pool.get(MODELS, "greedy"))["status"]
    assert status["lastFailure"]["exitCode"] == 137
    assert status["residency"] == "host"


async def test_a_field_that_the_api_server_dropped_is_named_with_the_nearest(pool: Rig):
    """A client without strict validation."""
    await pool.budget()
    applied = '{"spec": {"budgetRef": {"name": "default"}, "residancy": "device", "batching": {"maxSizes": 4}}}'
    await pool.model("minilm")
    annotation = {"metadata": {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": applied}}}
    await pool.client.patch(MODELS, pool.namespace, "minilm", annotation)
    message = await pool.until_condition(MODELS, "minilm", "Degraded", "True", "UnknownField")
    assert "unknown key 'spec.residancy': did you mean 'spec.residency'?" in message
    assert "unknown key 'spec.batching.maxSizes': did you mean 'spec.batching.maxSize'?" in message
    assert (await pool.condition(MODELS, "minilm", "Accepted"))[0] == "True"


async def test_a_model_with_no_copies_is_known_and_not_served(pool: Rig):
    await pool.budget()
    await pool.model("idle", replicas=0)
    await pool.until_condition(MODELS, "idle", "Ready", "False", "NotRequested")
    assert await pool.get(SERVICES, "idle") is not None
    await pool.model("idle", replicas=1)
    await pool.until_condition(MODELS, "idle", "Ready", "True")
    await pool.model("idle", replicas=0)
    await pool.until_condition(MODELS, "idle", "Ready", "False", "NotRequested")
    assert await pool.endpoints("idle") == {}


async def test_coverage_all_workers_follows_the_pool(pool: Rig):
    await pool.budget(replicas=2)
    await pool.model("everywhere", coverage="allWorkers")

    async def copies(count: int) -> bool:
        ready = [name for name, (is_ready, _, _) in (await pool.endpoints("everywhere")).items() if is_ready]
        return len(ready) == count and len(await pool.pods()) == count

    await pool.until(lambda: copies(2))
    await pool.budget(replicas=3)
    await pool.until(lambda: copies(3))


async def test_a_pool_with_its_own_address_only_has_no_service_per_model(pool: Rig):
    await pool.budget(serving={"addresses": "pool"})
    await pool.model("minilm")
    await pool.until_condition(MODELS, "minilm", "Ready", "True")
    assert await pool.get(SERVICES, "minilm") is None
    status = (await pool.get(MODELS, "minilm"))["status"]
    assert status["address"]["http"] == f"http://default-pool.{pool.namespace}.svc:8000"
    await pool.budget(serving={"addresses": "perModel"})
    await pool.until(lambda: pool.get(SERVICES, "minilm"))
    await pool.budget(serving={"addresses": "pool"})

    async def gone() -> bool:
        return await pool.get(SERVICES, "minilm") is None

    await pool.until(gone)


async def test_a_changed_tier_of_an_unpinned_model_reaches_the_status(pool: Rig):
    await pool.budget()
    await pool.model("cold")
    await pool.until_condition(MODELS, "cold", "Ready", "True")
    [worker] = pool.workers.values()
    state = pb.ModelState()
    state.CopyFrom(worker.models["cold"])
    state.tier, state.phase = pb.TIER_DEVICE, pb.MODEL_PHASE_LOADED
    worker.change(state)

    async def on_device() -> bool:
        return (await pool.get(MODELS, "cold"))["status"]["residency"] == "device"

    await pool.until(on_device)


async def test_a_model_that_fits_nowhere_says_what_is_missing(pool: Rig):
    def prepare(worker) -> None:
        worker.bundles["pvc://models/huge"] = 2000 * MIB

    pool.prepare = prepare
    await pool.budget()
    await pool.model("huge", residency="device")
    message = await pool.until_condition(MODELS, "huge", "Placed", "False", "InsufficientDeviceMemory")
    assert "0 of 1 copies have a worker" in message
    await pool.until_condition(MODELS, "huge", "Ready", "False", "InsufficientDeviceMemory")


async def test_deletion_of_a_model_waits_for_nobody(pool: Rig):
    """The worker is dead, the model never loaded. SeldonIO/seldon-core#5043, SeldonIO/seldon-core#4768."""
    pool.prepare = lambda worker: worker.slow.add("stuck")
    await pool.budget()
    await pool.model("stuck", residency="device")
    [worker] = await pool.until(lambda: _as_list(pool))
    await pool.until_condition(MODELS, "stuck", "Loaded", "False", "Pending")
    await worker.stop()
    await pool.delete(MODELS, "stuck")
    assert await pool.get(MODELS, "stuck") is None
    await worker.start()

    async def forgotten() -> bool:
        return not worker.models

    await pool.until(forgotten)


async def _as_list(pool: Rig) -> list:
    return list(pool.workers.values())


@pytest.mark.parametrize(
    ("name", "right"),
    [("a" * 63, True), ("a" * 64, False), ("mini.lm", False), ("1st", False)],
)
async def test_names_that_name_a_service_are_accepted_and_others_refused(bare: Rig, name: str, right: bool):
    if right:
        await bare.budget()
        await bare.model(name)
        bare.start_operator()
        await bare.until_condition(MODELS, name, "Ready", "True")
        assert await bare.get(SERVICES, name) is not None
        assert len(await bare.endpoints(name)) == 1
        return
    with pytest.raises(Exception, match=f"metadata.name '{name}' "):
        await bare.model(name)


async def test_a_pool_with_too_many_models_keeps_its_own_address(server, operator_config):
    async with rig(server.kubeconfig, operator_config, max_model_services=2) as pool:
        pool.start_operator()
        await pool.budget()
        for name in ("one", "two"):
            await pool.model(name)
            await pool.until_condition(MODELS, name, "Ready", "True")
        assert await pool.get(SERVICES, "one") is not None
        await pool.model("three")
        message = await pool.until_condition(BUDGETS, "default", "Degraded", "True", "TooManyEndpoints")
        assert "call them at default-pool" in message

        async def only_the_pool_s() -> bool:
            return {s["metadata"]["name"] for s in await pool.list(SERVICES)} == {"default-pool", "default-workers"}

        await pool.until(only_the_pool_s)
        await pool.until_condition(MODELS, "three", "Ready", "True")
        await pool.delete(MODELS, "two")
        await pool.delete(MODELS, "one")  # nine tenths of the limit are less than two
        await pool.until(lambda: pool.get(SERVICES, "three"))


async def test_a_paused_model_stays_as_it_is_until_it_is_resumed(pool: Rig):
    await pool.budget()
    await pool.model("minilm", residency="device")
    await pool.until_condition(MODELS, "minilm", "Ready", "True")
    [worker] = pool.workers.values()
    await pool.annotate(MODELS, "minilm", paused="true")
    await pool.until_condition(MODELS, "minilm", "Accepted", "True", "Paused")
    await pool.model("minilm", residency="system")
    await pool.model("other")
    await pool.until_condition(MODELS, "other", "Ready", "True")
    assert worker.models["minilm"].residency == pb.RESIDENCY_DEVICE
    await pool.annotate(MODELS, "minilm", paused=None)

    async def resumed() -> bool:
        return worker.models["minilm"].residency == pb.RESIDENCY_SYSTEM

    await pool.until(resumed)
