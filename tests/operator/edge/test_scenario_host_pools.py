# SPDX-License-Identifier: Apache-2.0
"""Host pools on nodes: prepared with the pods, remembered, and removed when nobody needs them."""

from __future__ import annotations

import pytest
from helpers.operator_rig import BUDGETS, OPERATOR_IMAGE, PODS, Rig

from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.reconcile import host_pools

LABEL = "app.kubernetes.io/component=host-pool-removal"
SHARED = {"host": {"budget": "1Gi", "sharing": "node"}}


async def removals(pool: Rig) -> list[dict]:
    return await pool.list(PODS, LABEL)


async def end_removals(pool: Rig, phase: str = "Succeeded", **status) -> list[str]:
    """What kubelets do: every pod that removes a pool has run. Returns their nodes."""
    found = [pod for pod in await removals(pool) if pod.get("status", {}).get("phase") == "Pending"]
    for pod in found:
        await pool.set_pod_status(pod["metadata"]["name"], phase=phase, **status)
    return [pod["spec"]["nodeName"] for pod in found]


async def gone(pool: Rig) -> bool:
    return await pool.get(BUDGETS, "default") is None


async def test_nodes_with_shared_copies_are_remembered_also_when_their_workers_are_gone(pool: Rig):
    await pool.budget(replicas=2, **SHARED)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")

    async def nodes() -> bool:
        return (await pool.get(BUDGETS, "default"))["status"].get("hostNodes") == ["node-a", "node-b"]

    await pool.until(nodes)
    await pool.budget(replicas=0, **SHARED)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "False", "NotRequested")
    assert await nodes()


async def test_deleting_a_budget_removes_its_pools_also_from_nodes_without_workers(pool: Rig):
    await pool.budget(replicas=2, **SHARED)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    uid = (await pool.get(BUDGETS, "default"))["metadata"]["uid"]
    await pool.budget(replicas=0, **SHARED)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "False", "NotRequested")
    await pool.delete(BUDGETS, "default")

    async def both() -> list[dict]:
        found = await removals(pool)
        return found if len(found) == 2 else []

    for pod in await pool.until(both):
        [container] = pod["spec"]["containers"]
        assert container["image"] == OPERATOR_IMAGE
        assert container["args"] == ["/dev/shm/ballast", f"{pool.namespace}.default.{uid}"]
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        assert pod["spec"]["tolerations"][0] == {"operator": "Exists"}
    assert sorted(await end_removals(pool)) == ["node-a", "node-b"]
    await pool.until(lambda: gone(pool))
    assert await removals(pool) == []
    assert not any(reason == "HostPoolLeft" for _, reason, _ in await pool.events("default"))


async def test_a_new_leader_goes_on_with_the_removal(bare: Rig):
    first = bare.start_operator()
    await bare.budget(**SHARED)
    await bare.until_condition(BUDGETS, "default", "WorkersReady", "True")
    await bare.delete(BUDGETS, "default")
    await bare.until(lambda: removals(bare))
    first.stop()
    bare.start_operator()
    await end_removals(bare)
    await bare.until(lambda: gone(bare))
    assert await removals(bare) == []


async def test_a_node_that_cannot_be_reached_is_named_and_holds_nothing_up(pool: Rig):
    await pool.budget(**SHARED)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    await pool.delete(BUDGETS, "default")
    await pool.until(lambda: gone(pool), seconds=15)
    assert await removals(pool) == []

    async def said() -> list[str]:
        return [
            note
            for type_, reason, note in await pool.events("default")
            if (type_, reason) == ("Warning", "HostPoolLeft")
        ]

    [note] = await pool.until(said)
    assert "node-a" in note
    assert "/dev/shm/ballast/" in note
    assert "remove it there, or restart the node" in note


async def test_why_a_removal_failed_is_said(pool: Rig):
    await pool.budget(**SHARED)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    await pool.delete(BUDGETS, "default")
    ended = {"terminated": {"exitCode": 1, "message": "/dev/shm/ballast belongs to user 7"}}
    container = {"name": "host-pool", "image": "i", "imageID": "", "ready": False, "restartCount": 0, "state": ended}

    async def ended_again() -> bool:
        await end_removals(pool, "Failed", containerStatuses=[container])
        return await gone(pool)

    await pool.until(ended_again, seconds=15)

    async def said() -> bool:
        return any(
            "belongs to user 7" in note for _, reason, note in await pool.events("default") if reason == "HostPoolLeft"
        )

    await pool.until(said)


async def test_pools_go_when_copies_are_not_shared_any_more(pool: Rig):
    await pool.budget(**SHARED)
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")
    await pool.budget(host={"budget": "1Gi", "sharing": "none"})
    await pool.until(lambda: end_removals(pool))

    async def forgotten() -> bool:
        return "hostNodes" not in (await pool.get(BUDGETS, "default"))["status"] and not await removals(pool)

    await pool.until(forgotten)


async def test_a_node_left_without_workers_for_long_gives_its_memory_back(bare: Rig, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(host_pools, "IDLE_SECONDS", 0.5)
    bare.start_operator()
    await bare.budget(**SHARED)
    await bare.until_condition(BUDGETS, "default", "WorkersReady", "True")
    assert await removals(bare) == []
    await bare.budget(replicas=0, **SHARED)
    assert await bare.until(lambda: end_removals(bare)) == ["node-a"]

    async def forgotten() -> bool:
        return "hostNodes" not in (await bare.get(BUDGETS, "default"))["status"]

    await bare.until(forgotten)


async def test_a_namespace_that_forbids_shared_pools_is_told_what_to_set(pool: Rig):
    await pool.enforce_restricted()
    await pool.budget(host={})
    message = await pool.until_condition(BUDGETS, "default", "WorkersReady", "False", "PodsForbidden")
    assert "hostPath" in message
    assert "set spec.host.sharing to none" in message
    assert "pod-security.kubernetes.io/enforce=privileged" in message
    await pool.budget(host={"sharing": "none"})
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")


async def test_copies_that_cannot_be_kept_are_a_condition_an_event_and_a_metric_for_as_long_as_it_is_so(bare: Rig):
    operator = bare.start_operator()
    await bare.budget(**SHARED)
    await bare.until_condition(BUDGETS, "default", "WorkersReady", "True")
    [worker] = bare.workers.values()
    failure = pb.Failure(reason="ShmFallback", message="/dev/shm/ballast has 1 of 16 segments of 64 MiB")
    worker.change(condition=pb.WorkerCondition(phase=pb.WORKER_PHASE_READY, failure=failure))
    message = await bare.until_condition(BUDGETS, "default", "Degraded", "True", "ShmFallback")
    assert "1 of 16 segments" in message
    await bare.until_condition(BUDGETS, "default", "Ready", "True")
    labels = {"namespace": bare.namespace, "budget": "default"}

    def streaming() -> float | None:
        return operator.registry.get_sample_value("ballast_operator_workers_without_host_copies", labels)

    assert streaming() == 1

    async def said() -> bool:
        return any(reason == "ShmFallback" for _, reason, _ in await bare.events("default"))

    await bare.until(said)
    worker.change(condition=pb.WorkerCondition(phase=pb.WORKER_PHASE_READY))
    await bare.until_condition(BUDGETS, "default", "Degraded", "False")
    assert streaming() == 0


async def test_workers_are_told_how_many_of_them_divide_what_they_do_not_share(pool: Rig):
    await pool.budget(replicas=4, host={"budget": "1Gi", "sharing": "none"})
    await pool.until_condition(BUDGETS, "default", "WorkersReady", "True")

    async def told() -> bool:
        return [w.calls("ApplyAssignment")[-1].node_workers for w in pool.workers.values()] == [2, 2, 2, 2]

    await pool.until(told)


async def test_a_mount_that_is_too_small_is_the_reason_of_the_pool(pool: Rig):
    def prepare(worker) -> None:
        failure = pb.Failure(reason="ShmTooSmall", message="host.budget is ... and /dev/shm/ballast has ...")
        worker.condition = pb.WorkerCondition(phase=pb.WORKER_PHASE_REFUSED, failure=failure)

    pool.prepare = prepare
    await pool.budget(**SHARED)
    message = await pool.until_condition(BUDGETS, "default", "PlanFits", "False", "ShmTooSmall")
    assert "/dev/shm/ballast" in message
    await pool.until_condition(BUDGETS, "default", "Ready", "False", "ShmTooSmall")
