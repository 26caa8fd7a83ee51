# SPDX-License-Identifier: Apache-2.0
"""Builders of pods, workers, models and budgets for tests of pure plans."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.fleet.channel import Member
from ballast_operator.fleet.view import View
from ballast_operator.reconcile.pods import Pod, Trouble
from ballast_operator.reconcile.wishes import Model, judge_model
from ballast_operator.reconcile.workers import Worker

MIB = 1 << 20

_generations = itertools.count(1)  # of the whole run: parsed specs are remembered by uid and generation


class Builder:
    """Names give uids and addresses, so that tests need not repeat them."""

    def pod(self, name: str, *, trouble: Trouble | None = None, **fields: Any) -> Pod:
        pod = Pod(
            name=name,
            uid=f"uid-{name}",
            node=f"node-{name}",
            ip=f"10.0.0.{sum(map(ord, name)) % 250}",
            created="2026-01-01T00:00:00Z",
            ready=True,
            pending=False,
            terminating=False,
            finished=False,
            spec_hash="spec",
            template_hash="template",
            update_token="",
            config_name="config",
            owner_uid="owner",
            trouble=trouble,
        )
        return dataclasses.replace(pod, **fields)

    def worker(
        self,
        name: str,
        *models: pb.ModelState,
        heard: float | None = 100.0,
        now: float = 100.0,
        phase: int = pb.WORKER_PHASE_READY,
        leaving: bool = False,
        state: pb.WorkerState | None = None,
        **pod: Any,
    ) -> Worker:
        """A worker that reported at `heard`; None: it never did, and we began to listen at `now`."""
        found = self.pod(name, **pod)
        view = View(Member("ns", "default", name, found.uid, found.ip), now=now if heard is None else heard)
        if heard is not None:
            full = pb.WorkerState(condition=pb.WorkerCondition(phase=phase))
            if state is not None:
                full.MergeFrom(state)
            full.models.extend(models)
            view.take(pb.WatchResponse(instance_id="i", sequence=1, epoch=1, full=full), now=heard)
        return Worker(found, view, now, leaving=leaving)

    def state(
        self,
        name: str = "minilm",
        *,
        phase: int = pb.MODEL_PHASE_LOADED,
        tier: int = pb.TIER_DEVICE,
        namespace: str = "ns",
        served: str = "",
        **fields: Any,
    ) -> pb.ModelState:
        """What a worker says of a model."""
        return pb.ModelState(name=served or name, object=f"{namespace}/{name}", phase=phase, tier=tier, **fields)

    def model_object(self, name: str = "minilm", *, uid: str = "", **spec: Any) -> dict[str, Any]:
        """An InferenceModel as the API server gives it."""
        whole = {"budgetRef": {"name": "default"}, "source": {"uri": f"pvc://models/{name}"}, **spec}
        metadata = {
            "name": name,
            "namespace": "ns",
            "uid": uid or f"model-{name}",
            "generation": next(_generations),
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "resourceVersion": "1",
        }
        return {"apiVersion": "ballast.dev/v1alpha1", "kind": "InferenceModel", "metadata": metadata, "spec": whole}

    def budget_object(self, name: str = "default", **spec: Any) -> dict[str, Any]:
        """A WeightBudget as the API server gives it."""
        metadata = {
            "name": name,
            "namespace": "ns",
            "uid": f"budget-{name}",
            "generation": next(_generations),
            "resourceVersion": "1",
        }
        stores = [{"persistentVolumeClaim": {"claimName": "models"}}]
        return {
            "apiVersion": "ballast.dev/v1alpha1",
            "kind": "WeightBudget",
            "metadata": metadata,
            "spec": {"modelStores": stores, **spec},
        }

    def model(self, name: str = "minilm", **spec: Any) -> Model:
        """An accepted model."""
        obj = self.model_object(name, **spec)
        verdict = judge_model(obj, budget=self.budget_object(), namesakes=[obj])
        assert isinstance(verdict, Model), verdict
        return verdict
