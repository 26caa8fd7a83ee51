# SPDX-License-Identifier: Apache-2.0
"""Whatever fails, a status does not claim what is not so for long, and no endpoint goes whose worker answers."""

from __future__ import annotations

import asyncio
from typing import Any

from helpers.memory_cluster import BUDGET, NAMESPACE, Cluster, Leader, claims_ready, uids
from helpers.memory_worker import MemoryWorker
from helpers.virtual_time import VirtualLoop
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.cluster.resources import BUDGETS, ENDPOINT_SLICES, MODELS, SERVICES

SUCCESSION_SECONDS = 15.0
"""Until another one leads when the leader died; it then has the same 10 s, so that 25 is the most after both died."""

NAMES = st.sampled_from(["ada", "ben", "cleo"])
INDEX = st.integers(0, 3)


class Faults(RuleBasedStateMachine):
    """Random faults, one after another and on top of each other."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = VirtualLoop()
        self.cluster = Cluster(self.loop)
        self.api = self.cluster.api
        self.running: asyncio.Task[None] | None = None

    def run(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @initialize(replicas=st.integers(1, 3))
    def begin(self, replicas: int) -> None:
        async def start() -> None:
            self.running = asyncio.create_task(self.cluster.run())
            self.budget(replicas)
            for name in ("ada", "ben"):
                self.model(name, "unpinned", 1)
            self.cluster.leader = Leader(self.cluster, next(self.cluster.epochs))
            await asyncio.sleep(20)

        self.run(start())
        assert claims_ready(self.api.find(MODELS, NAMESPACE, "ada")), "it serves before anything fails"

    def budget(self, replicas: int) -> None:
        spec = {"workers": {"replicas": replicas, "backend": "cpu"}, "modelStores": [], "host": {"budget": "0"}}
        self.api.put(BUDGETS, {"metadata": {"namespace": NAMESPACE, "name": BUDGET}, "spec": spec})

    def model(self, name: str, residency: str, replicas: int) -> None:
        source = {"uri": f"file:///models/{name}"}
        spec = {"budgetRef": {"name": BUDGET}, "source": source, "residency": residency, "replicas": replicas}
        self.api.put(MODELS, {"metadata": {"namespace": NAMESPACE, "name": name}, "spec": spec})
        if replicas == 0:
            self.cluster.unwanted_at[name] = self.loop.time()

    def pick(self, index: int) -> MemoryWorker | None:
        workers = self.cluster.live()
        return workers[index % len(workers)] if workers else None

    @rule(seconds=st.sampled_from([0.5, 3.0, 9.0, 12.0, 40.0, 70.0]))
    def time_passes(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))

    @rule(index=INDEX)
    def a_worker_dies(self, index: int) -> None:
        if (worker := self.pick(index)) is not None:
            worker.crash()

    @rule(index=INDEX)
    def a_worker_starts_again(self, index: int) -> None:
        if (worker := self.pick(index)) is not None:
            worker.crash()
            worker.come_back()

    @rule(index=INDEX, reachable=st.booleans())
    def a_worker_falls_silent_or_is_heard_again(self, index: int, reachable: bool) -> None:
        if (worker := self.pick(index)) is not None:
            worker.reachable = reachable

    @rule(index=INDEX, name=NAMES)
    def a_worker_loses_a_model(self, index: int, name: str) -> None:
        worker = self.pick(index)
        if worker is not None and worker.up and name in worker.models:
            state = pb.ModelState()
            state.CopyFrom(worker.models[name])
            state.phase, state.tier = pb.MODEL_PHASE_PENDING, pb.TIER_NONE
            self.run(self.tell(worker, state))

    async def tell(self, worker: MemoryWorker, state: pb.ModelState) -> None:
        worker.change(state)

    @rule(looking=st.booleans())
    def kubelets_stop_or_go_on_looking(self, looking: bool) -> None:
        self.cluster.kubelets_look = looking

    @rule(index=INDEX)
    def a_pod_is_deleted_by_force(self, index: int) -> None:
        if (worker := self.pick(index)) is not None:
            uid = next(uid for uid, each in self.cluster.workers.items() if each is worker)
            self.run(self.force(uid, worker.name))

    async def force(self, uid: str, name: str) -> None:
        self.cluster.end_pod(uid, name)

    @rule(name=NAMES, kind=st.sampled_from([SERVICES, ENDPOINT_SLICES]))
    def a_child_is_deleted_by_somebody(self, name: str, kind: Any) -> None:
        async def delete() -> None:
            for obj in self.api.all(kind):
                if obj["metadata"]["labels"].get("ballast.dev/model") == name:
                    self.api.remove(kind, NAMESPACE, obj["metadata"]["name"])

        self.run(delete())

    @rule(name=NAMES, residency=st.sampled_from(["unpinned", "device"]), replicas=st.integers(0, 2))
    def a_model_is_applied(self, name: str, residency: str, replicas: int) -> None:
        async def put() -> None:
            self.model(name, residency, replicas)

        self.run(put())

    @rule(name=NAMES)
    def a_model_is_deleted(self, name: str) -> None:
        async def remove() -> None:
            self.api.remove(MODELS, NAMESPACE, name)

        self.run(remove())

    @rule(replicas=st.integers(1, 3))
    def the_pool_is_scaled(self, replicas: int) -> None:
        async def put() -> None:
            self.budget(replicas)

        self.run(put())

    @rule(calls=st.integers(1, 8))
    def the_api_server_refuses_calls(self, calls: int) -> None:
        self.api.refuse = calls

    @rule()
    def the_watch_is_cut(self) -> None:
        self.api.watching = False

    @precondition(lambda self: not self.api.watching)
    @rule()
    def the_watch_begins_anew(self) -> None:
        async def relist() -> None:
            self.api.watching = True
            if self.cluster.leader is not None:
                self.cluster.leader.relist()

        self.run(relist())

    @rule(seconds=st.sampled_from([0.0, 2.0, 12.0, SUCCESSION_SECONDS]))
    def the_leader_changes(self, seconds: float) -> None:
        async def change() -> None:
            await self.cluster.leader.die()
            self.cluster.leader = None
            await asyncio.sleep(seconds)
            self.cluster.leads_since = self.loop.time()
            self.api.watching = True
            self.cluster.leader = Leader(self.cluster, next(self.cluster.epochs))

        self.run(change())

    @invariant()
    def nothing_was_wrong(self) -> None:
        assert not self.cluster.wrong, self.cluster.wrong[0]

    def teardown(self) -> None:
        try:
            if self.cluster.leader is not None and not self.cluster.wrong:
                self.everything_is_well_again()
        finally:
            self.end()

    def everything_is_well_again(self) -> None:
        """When all faults have ended, every model is served and says so."""

        async def heal() -> None:
            self.api.refuse, self.api.watching, self.cluster.kubelets_look = 0, True, True
            for worker in self.cluster.live():
                worker.reachable = True
                if not worker.up:
                    worker.come_back()
                for name in list(worker.models):
                    worker.finish(name)
            self.cluster.leader.relist()
            await asyncio.sleep(150)

        self.run(heal())
        assert not self.cluster.wrong, self.cluster.wrong[0]
        for model in self.api.all(MODELS):
            if model["spec"]["replicas"]:
                name = model["metadata"]["name"]
                exposed = set().union(
                    *(
                        uids(s)
                        for s in self.api.all(ENDPOINT_SLICES)
                        if s["metadata"]["labels"]["ballast.dev/model"] == name
                    )
                )
                answering = {uid for uid, worker in self.cluster.workers.items() if worker.answers(name)}
                assert claims_ready(model), (name, model["status"]["conditions"])
                assert exposed, name
                assert exposed <= answering, name

    def end(self) -> None:
        async def stop() -> None:
            if self.cluster.leader is not None:
                await self.cluster.leader.die()
            if self.running is not None:
                self.running.cancel()
                await asyncio.gather(self.running, return_exceptions=True)

        self.run(stop())
        self.run(self.loop.shutdown_asyncgens())
        self.loop.close()


TestFaults = Faults.TestCase
TestFaults.settings = settings(
    max_examples=15,
    stateful_step_count=20,
    derandomize=True,
    phases=[Phase.generate],
    deadline=None,
    suppress_health_check=list(HealthCheck),
)


def test_a_new_leader_says_within_ten_seconds_that_workers_are_dead_which_it_never_heard():
    faults = Faults()
    faults.begin(3)
    faults.kubelets_stop_or_go_on_looking(looking=False)
    faults.the_leader_changes(0.0)
    for index in range(3):
        faults.a_worker_dies(index)
    faults.the_api_server_refuses_calls(6)
    faults.time_passes(40.0)
    faults.nothing_was_wrong()
    faults.end()


def test_an_endpoint_goes_with_its_pod_where_a_new_leader_never_heard_the_worker():
    faults = Faults()
    faults.begin(3)
    faults.kubelets_stop_or_go_on_looking(looking=False)
    faults.the_leader_changes(0.0)
    for index in range(3):
        faults.a_worker_dies(index)
    faults.the_api_server_refuses_calls(6)
    faults.time_passes(12.0)
    faults.kubelets_stop_or_go_on_looking(looking=True)
    faults.time_passes(9.0)
    assert [uids(found) for found in faults.api.all(ENDPOINT_SLICES)] == []
    faults.end()
