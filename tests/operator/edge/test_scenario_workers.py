# SPDX-License-Identifier: Apache-2.0
"""Workers that come, go, move, fall silent and start again."""

from __future__ import annotations

import asyncio

import pytest
from helpers.operator_rig import BUDGETS, CLAIMS, CONFIG_MAPS, MODELS, PODS, Rig

from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.reconcile import stores

pytestmark = pytest.mark.apiserver


async def _uids(rig: Rig) -> set[str]:
    return {pod["metadata"]["uid"] for pod in await rig.pods()}


async def _serving(rig: Rig, model: str) -> str:
    """The pod that alone answers for a model."""

    async def one() -> str:
        [name] = [n for n, (ready, _, _) in (await rig.endpoints(model)).items() if ready]
        return name

    return str(await rig.until(one))


async def test_worker_pods_are_restricted_and_carry_their_template(pool: Rig):
    await pool.budget(workers={"env": [{"name": "MODE", "value": "x"}], "podMetadata": {"labels": {"team": "a"}}})
    [pod] = await pool.until(pool.pods)
    spec, [container] = pod["spec"], pod["spec"]["containers"]
    assert pod["metadata"]["labels"]["team"] == "a"
    assert spec["securityContext"]["runAsNonRoot"] is True
    assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["readOnlyRootFilesystem"] is True
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert (spec["automountServiceAccountToken"], spec["enableServiceLinks"]) == (False, False)
    assert {m["mountPath"] for m in container["volumeMounts"]} >= {"/tmp", "/models/models", "/dev/shm/ballast"}
    assert {"name": "MODE", "value": "x"} in container["env"]
    assert pod["metadata"]["annotations"]["ballast.dev/template-hash"]
    assert pod["metadata"]["ownerReferences"][0]["kind"] == "WeightBudget"


async def test_a_namespace_that_enforces_the_restricted_level_takes_the_pods(bare: Rig):
    await bare.enforce_restricted()
    bare.start_operator()
    await bare.budget()
    await bare.until_condition(BUDGETS, "default", "Ready", "True")


async def test_a_worker_whose_label_was_removed_by_force_is_replaced_and_its_models_are_served_meanwhile(pool: Rig):
    await pool.budget(replicas=2)
    await pool.model("minilm", residency="device")
    await pool.until_condition(MODELS, "minilm", "Ready", "True")
    bare = await _serving(pool, "minilm")
    ready = await pool.transition(MODELS, "minilm", "Ready")
    await pool.client.patch(PODS, pool.namespace, bare, {"metadata": {"labels": {"ballast.dev/budget": None}}})

    async def replaced() -> bool:
        return await pool.get(PODS, bare) is None and len(await pool.pods()) == 2

    await pool.until(replaced)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    assert await _serving(pool, "minilm") != bare
    assert await pool.transition(MODELS, "minilm", "Ready") == ready


async def test_a_restarted_worker_is_told_again_what_it_serves(pool: Rig):
    """vllm-project/aibrix#236."""
    await pool.budget()
    await pool.model("minilm", residency="device")
    await pool.until_condition(MODELS, "minilm", "Ready", "True")
    [worker] = pool.workers.values()
    uids = await _uids(pool)
    told = len(worker.calls("ApplyAssignment"))
    await worker.stop()
    worker.restart()
    worker.models.clear()
    await worker.start()

    async def again() -> bool:
        return len(worker.calls("ApplyAssignment")) > told and "minilm" in worker.models

    await pool.until(again)
    await pool.until_condition(MODELS, "minilm", "Ready", "True")
    assert worker.calls("ApplyAssignment")[-1].routes.base_version == 0
    assert await _uids(pool) == uids


async def test_a_silent_worker_makes_conditions_unknown_and_leaves_endpoints_alone(pool: Rig):
    await pool.budget()
    await pool.model("minilm", residency="device")
    await pool.until_condition(MODELS, "minilm", "Ready", "True")
    before = await pool.endpoints("minilm")
    [worker] = pool.workers.values()
    worker.silent = True
    await pool.until_condition(MODELS, "minilm", "Ready", "Unknown", "HeartbeatStale")
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "Unknown", "HeartbeatStale")
    status = (await pool.get(MODELS, "minilm"))["status"]
    assert "residency" not in status
    assert "readyReplicas" not in status
    assert await pool.endpoints("minilm") == before
    worker.silent = False
    await pool.until_condition(MODELS, "minilm", "Ready", "True")
    assert await pool.endpoints("minilm") == before


async def test_a_pod_that_is_not_ready_loses_its_endpoint(pool: Rig):
    await pool.budget()
    await pool.model("minilm")
    name = await _serving(pool, "minilm")
    await pool.set_ready(name, False)
    await pool.until_condition(MODELS, "minilm", "Ready", "False", "WorkersStarting")
    assert await pool.endpoints("minilm") == {}
    await pool.set_ready(name, True)
    await pool.until_condition(MODELS, "minilm", "Ready", "True")


async def test_a_worker_that_is_heard_answers_although_kubernetes_has_not_heard_of_its_node(pool: Rig):
    """After an outage of the API server every pod is called not Ready before the kubelets have spoken again."""
    await pool.budget(replicas=2)
    await pool.model("minilm")
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    await pool.until_condition(MODELS, "minilm", "Ready", "True")
    name = await _serving(pool, "minilm")
    ready, uids = await pool.transition(MODELS, "minilm", "Ready"), await _uids(pool)
    before = await pool.endpoints("minilm")
    for each in list(pool.workers):
        await pool.lose_sight(each)
    await pool.model("later")
    await pool.until_condition(MODELS, "later", "Ready", "True")
    assert (await pool.condition(BUDGETS, "default", "WorkersReady"))[0] == "True"
    assert (await pool.transition(MODELS, "minilm", "Ready"), await _uids(pool)) == (ready, uids)
    assert await pool.endpoints("minilm") == before
    pool.workers[name].silent = True
    [other] = pool.workers.keys() - {name}

    async def left() -> bool:
        return {n for n, (ready, _, _) in (await pool.endpoints("minilm")).items() if ready} == {other}

    await pool.until(left)
    await pool.until_condition(MODELS, "minilm", "Ready", "True")


async def test_a_new_operator_keeps_pods_assignments_and_conditions_and_has_a_higher_epoch(bare: Rig):
    first = bare.start_operator()
    await bare.budget(replicas=2)
    for name in ("one", "two", "three"):
        await bare.model(name, residency="device")
    for name in ("one", "two", "three"):
        await bare.until_condition(MODELS, name, "Ready", "True")
    uids = await _uids(bare)
    placed = {n: (await bare.get(MODELS, n))["status"]["assignment"] for n in ("one", "two", "three")}
    ready = {n: await bare.transition(MODELS, n, "Ready") for n in placed}
    epochs = {worker.epoch for worker in bare.workers.values()}
    await asyncio.to_thread(first.stop)
    bare.start_operator()

    async def taken_over() -> bool:
        return all(worker.epoch == max(epochs) + 1 for worker in bare.workers.values())

    await bare.until(taken_over)
    await bare.model("four")
    await bare.until_condition(MODELS, "four", "Ready", "True")
    assert await _uids(bare) == uids
    assert {n: (await bare.get(MODELS, n))["status"]["assignment"] for n in placed} == placed
    assert {n: await bare.transition(MODELS, n, "Ready") for n in placed} == ready


async def test_an_epoch_below_one_that_a_worker_has_seen_is_raised(bare: Rig):
    def prepare(worker) -> None:
        worker.epoch = 40

    bare.prepare = prepare
    bare.start_operator()
    await bare.budget()
    await bare.model("minilm")
    await bare.until_condition(MODELS, "minilm", "Ready", "True")
    [worker] = bare.workers.values()
    assert worker.epoch == 41


async def test_models_of_a_deleted_pod_move_and_the_pod_is_replaced(pool: Rig):
    await pool.budget(replicas=2)
    await pool.model("minilm", residency="device")
    name = await _serving(pool, "minilm")
    await pool.delete(PODS, name)

    async def moved() -> bool:
        ready = {n for n, (is_ready, _, _) in (await pool.endpoints("minilm")).items() if is_ready}
        return len(ready) == 1 and name not in ready and len(await pool.pods()) == 2

    await pool.until(moved)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")


async def test_a_terminating_worker_serves_until_its_models_have_moved_and_is_released_then(pool: Rig):
    pool.prepare = lambda worker: worker.slow.add("minilm") if len(pool.workers) > 1 else None
    await pool.budget(replicas=2)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    for worker in pool.workers.values():
        worker.slow.clear()
    await pool.model("minilm", residency="device")
    name = await _serving(pool, "minilm")
    old = pool.workers[name]
    for worker in pool.workers.values():
        if worker is not old:
            worker.slow.add("minilm")
    pool.prepare = lambda worker: worker.slow.add("minilm")
    await pool.delete(PODS, name)

    async def terminating() -> bool:
        return (await pool.endpoints("minilm")).get(name) == (False, True, True)

    await pool.until(terminating)
    assert not old.released

    async def loading() -> list:
        return [w for w in pool.workers.values() if w is not old and "minilm" in w.models]

    [target] = await pool.until(loading)
    assert not old.released
    target.finish("minilm")

    async def handed_over() -> bool:
        return old.released and (await pool.endpoints("minilm")) == {target.name: (True, True, False)}

    await pool.until(handed_over)


async def test_scaling_down_moves_models_before_it_deletes_and_no_moment_is_without_endpoint(pool: Rig):
    await pool.budget(replicas=2)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    for name in ("one", "two", "three", "four"):
        await pool.model(name, residency="device")
    for name in ("one", "two", "three", "four"):
        await pool.until_condition(MODELS, name, "Ready", "True")
    empty: list[str] = []
    done = asyncio.Event()

    async def watch() -> None:
        while not done.is_set():
            for name in ("one", "two", "three", "four"):
                answering = [serving for _, serving, _ in (await pool.endpoints(name)).values()]
                empty.extend([] if any(answering) else [name])

    watching = asyncio.create_task(watch())
    await pool.budget(replicas=1)

    async def shrunk() -> bool:
        return len(await pool.pods()) == 1

    await pool.until(shrunk, seconds=40)
    done.set()
    await watching
    assert empty == []
    [pod] = await pool.pods()
    for name in ("one", "two", "three", "four"):
        assert await _serving(pool, name) == pod["metadata"]["name"]


async def test_a_changed_spec_replaces_workers_one_at_a_time(pool: Rig):
    await pool.budget(replicas=3)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    await pool.model("minilm", residency="device")
    await pool.until_condition(MODELS, "minilm", "Ready", "True")
    before = await _uids(pool)
    await pool.budget(replicas=3, device={"reserve": "2Gi"})

    async def first_replaced() -> bool:
        return len(await _uids(pool) - before) >= 1

    await pool.until(first_replaced)
    assert len(await pool.pods()) >= 2
    await pool.until_condition(BUDGETS, "default", "UpToDate", "True", seconds=60)

    async def all_replaced() -> bool:
        pods = await pool.pods()
        hashes = {pod["metadata"]["annotations"]["ballast.dev/template-hash"] for pod in pods}
        return len(pods) == 3 and not before & await _uids(pool) and len(hashes) == 1

    await pool.until(all_replaced)
    await pool.until_condition(MODELS, "minilm", "Ready", "True")


async def test_a_reverted_change_leaves_one_generation_of_pods(pool: Rig):
    """Reverted half way through its rollout."""
    await pool.budget(replicas=2)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    before = await _uids(pool)
    await pool.budget(replicas=2, device={"reserve": "2Gi"})

    async def begun() -> bool:
        return bool(await _uids(pool) - before)

    await pool.until(begun)
    await pool.budget(replicas=2, device={"reserve": "1536Mi"})
    await pool.until_condition(BUDGETS, "default", "UpToDate", "True")

    async def one_generation() -> bool:
        pods = await pool.pods()
        hashes = {pod["metadata"]["annotations"]["ballast.dev/template-hash"] for pod in pods}
        maps = await pool.list(CONFIG_MAPS, "app.kubernetes.io/component=config")
        return len(pods) == 2 and len(hashes) == 1 and len(maps) == 1

    await pool.until(one_generation)


async def test_pods_of_an_earlier_release_stay_until_the_update_is_asked_for(bare: Rig):
    """An upgrade of the operator restarts nothing.

    ai-dynamo/dynamo#13495, ai-dynamo/dynamo#13620, kserve/modelmesh-serving#486, cloudnative-pg/cloudnative-pg#5950.
    """
    old = bare.start_operator()
    await bare.budget()
    await bare.until_condition(BUDGETS, "default", "Ready", "True")
    uids = await _uids(bare)
    await asyncio.to_thread(old.stop)
    bare.release("registry.example/ballast-worker:next")
    bare.start_operator()
    message = await bare.until_condition(BUDGETS, "default", "UpToDate", "False", "UpdateAvailable")
    assert "ballast.dev/update" in message
    assert await _uids(bare) == uids
    await bare.annotate(BUDGETS, "default", update="now")

    async def updated() -> bool:
        [pod] = await bare.pods()
        return pod["spec"]["containers"][0]["image"] == "registry.example/ballast-worker:next"

    await bare.until(updated)
    await bare.until_condition(BUDGETS, "default", "UpToDate", "True")


async def test_pods_that_the_api_server_refuses_are_explained(pool: Rig):
    await pool.budget("forbidden", workers={"runtimeClassName": "nowhere"})
    message = await pool.until_condition(BUDGETS, "forbidden", "WorkersReady", "False", "PodsForbidden")
    assert 'RuntimeClass "nowhere" not found' in message
    await pool.budget("invalid", workers={"resources": {"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}})
    message = await pool.until_condition(BUDGETS, "invalid", "WorkersReady", "False", "InvalidPodTemplate")
    assert "must be less than or equal to cpu limit" in message
    await pool.model("minilm", budget="invalid")
    await pool.until_condition(MODELS, "minilm", "Ready", "False", "InvalidPodTemplate")
    assert any(reason == "PodsForbidden" for _, reason, _ in await pool.events("forbidden"))


@pytest.mark.parametrize(
    ("status", "reason", "text"),
    [
        (
            {
                "phase": "Pending",
                "conditions": [
                    {
                        "type": "PodScheduled",
                        "status": "False",
                        "reason": "Unschedulable",
                        "message": "0/2 nodes: no GPU",
                    }
                ],
            },
            "Unschedulable",
            "0/2 nodes: no GPU",
        ),
        (
            {"phase": "Pending", "waiting": {"reason": "ImagePullBackOff", "message": "manifest unknown"}},
            "ImagePullFailed",
            "manifest unknown",
        ),
        (
            {
                "phase": "Running",
                "waiting": {"reason": "CrashLoopBackOff"},
                "terminated": {"exitCode": 137, "reason": "OOMKilled"},
            },
            "WorkerCrashed",
            "ended with exit code 137 (OOMKilled), restarted 3 times",
        ),
    ],
)
async def test_pods_that_do_not_run_are_explained(pool: Rig, status: dict, reason: str, text: str):
    """With the exit code."""
    pool.kubelet = False
    await pool.budget()
    await pool.model("minilm")
    [pod] = await pool.until(pool.pods)
    container = {
        "name": "worker",
        "image": "registry.example/ballast-worker:test",
        "imageID": "",
        "ready": False,
        "restartCount": 3,
        "state": {"waiting": status.pop("waiting")} if "waiting" in status else {},
        "lastState": {"terminated": status.pop("terminated")} if "terminated" in status else {},
    }
    await pool.set_pod_status(pod["metadata"]["name"], containerStatuses=[container], **status)
    message = await pool.until_condition(BUDGETS, "default", "WorkersReady", "False", reason)
    assert text in message
    await pool.until_condition(MODELS, "minilm", "Ready", "False", reason)


async def test_a_refused_plan_is_shown_with_its_cure(pool: Rig):
    def prepare(worker) -> None:
        failure = pb.Failure(reason="PlanRefused", message="200 MiB are missing: set device.budget to 1224Mi")
        worker.condition = pb.WorkerCondition(phase=pb.WORKER_PHASE_REFUSED, failure=failure)
        worker.plan.fits, worker.plan.shortfall_bytes = False, 200 << 20

    pool.prepare = prepare
    await pool.budget()
    message = await pool.until_condition(BUDGETS, "default", "PlanFits", "False", "PlanRefused")
    assert "set device.budget to 1224Mi" in message
    await pool.until_condition(BUDGETS, "default", "Ready", "False", "PlanRefused")
    status = (await pool.get(BUDGETS, "default"))["status"]
    assert status["shortfall"] == "200Mi"
    assert {"line": "context", "bytes": "64Mi", "source": "measured"} in status["plan"]


async def test_deleting_a_budget_ends_in_time_although_its_workers_are_dead(pool: Rig):
    await pool.budget(replicas=2)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    for worker in pool.workers.values():
        await worker.stop()
    pool.kubelet = False  # nor does any kubelet say that the pods have ended
    await pool.delete(BUDGETS, "default")

    async def gone() -> bool:
        return await pool.get(BUDGETS, "default") is None

    await pool.until(gone, seconds=30)
    [note] = [note for _, reason, note in await pool.events("default") if reason == "WorkerGone"]
    assert note.startswith("2 worker pods did not end within 3 s")


async def test_a_paused_budget_is_left_alone(pool: Rig):
    await pool.budget()
    await pool.until_condition(BUDGETS, "default", "Ready", "True")
    uids = await _uids(pool)
    await pool.annotate(BUDGETS, "default", paused="true")
    await pool.until_condition(BUDGETS, "default", "Accepted", "True", "Paused")
    await pool.budget(replicas=2)

    async def observed() -> bool:
        obj = await pool.get(BUDGETS, "default")
        return obj["status"]["observedGeneration"] == obj["metadata"]["generation"]

    await pool.until(observed)
    assert await _uids(pool) == uids
    await pool.annotate(BUDGETS, "default", paused=None)

    async def grown() -> bool:
        return len(await pool.pods()) == 2

    await pool.until(grown)


async def test_a_pod_that_a_node_turned_away_is_replaced_without_haste(pool: Rig):
    pool.kubelet = False
    await pool.budget()
    [first] = await pool.until(pool.pods)
    turned_away = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "no GPU is left"}
    await pool.set_pod_status(first["metadata"]["name"], **turned_away)

    async def replaced() -> str:
        [pod] = await pool.pods()
        return pod["metadata"]["uid"] != first["metadata"]["uid"] and pod["metadata"]["name"]

    name = await pool.until(replaced)
    assert any(
        "no GPU is left" in note for _, reason, note in await pool.events("default") if reason == "WorkerDeleted"
    )
    pool.kubelet = True
    await pool.until_condition(BUDGETS, "default", "Ready", "True")
    assert [p["metadata"]["name"] for p in await pool.pods()] == [name]


async def test_a_store_that_one_node_alone_can_mount_is_named(pool: Rig, monkeypatch):
    monkeypatch.setattr(stores, "PATIENCE_SECONDS", -10.0)
    claim = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": "1Gi"}},
        "storageClassName": "",
    }
    await pool.apply(CLAIMS, "models", claim)
    pool.kubelet = False
    await pool.budget(replicas=2)

    async def both() -> list:
        pods = await pool.pods()
        return pods if len(pods) == 2 else []

    first, second = await pool.until(both)
    await pool.run_pod(first)
    await pool.bind(second)
    message = await pool.until_condition(BUDGETS, "default", "WorkersReady", "False", "ModelStoreNotShared")
    assert "claim 'models' of spec.modelStores has the access mode ReadWriteOnce" in message
