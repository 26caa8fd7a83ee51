# SPDX-License-Identifier: Apache-2.0
"""The objects of the API as they are wished: parsed once for each generation, and judged beyond what the schema says."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

import pydantic

from ballast_contract import config, names, validation
from ballast_contract.reasons import Reason
from ballast_contract.residency import RESIDENCIES
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.api.inferencemodel import InferenceModelSpec
from ballast_operator.api.weightbudget import WeightBudgetSpec
from ballast_operator.cluster.client import Object

S = TypeVar("S", bound=pydantic.BaseModel)

_REMEMBERED: Final = 50_000


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why an object is not accepted."""

    reason: Reason
    message: str


class Parser(Generic[S]):
    """Parses specs and remembers them by uid and generation; an invalid one becomes a Rejection."""

    def __init__(self, model: type[S]) -> None:
        self._model = model
        self._known: OrderedDict[tuple[str, int], S | Rejection] = OrderedDict()

    def __call__(self, obj: Object) -> S | Rejection:
        """The spec of an object."""
        key = obj["metadata"].get("uid", ""), obj["metadata"].get("generation", 0)
        found = self._known.get(key)
        if found is None:
            found = self._known[key] = self._parse(obj)
            if len(self._known) > _REMEMBERED:
                self._known.popitem(last=False)
        return found

    def _parse(self, obj: Object) -> S | Rejection:
        try:
            return self._model.model_validate(obj.get("spec") or {})
        except pydantic.ValidationError as error:
            return Rejection(Reason.INVALID_SPEC, validation.describe(error, self._model))


parse_model: Final = Parser(InferenceModelSpec)
parse_budget: Final = Parser(WeightBudgetSpec)


@dataclass(frozen=True, slots=True)
class Model:
    """An InferenceModel that is wanted: what a worker is told of it, and where it may go."""

    uid: str
    namespace: str
    name: str
    served_name: str
    spec: InferenceModelSpec

    @property
    def object(self) -> str:
        """namespace/name."""
        return f"{self.namespace}/{self.name}"

    @property
    def source(self) -> tuple[str, str]:
        """Place and digest, the key of what is known of the bundle."""
        return self.spec.source.uri, self.spec.source.digest or ""

    @property
    def pinned(self) -> bool:
        """Whether the weights always stay on the device."""
        return self.spec.residency is config.ResidencyWish.DEVICE

    def message(self) -> pb.AssignedModel:
        """What a worker is told."""
        batching = self.spec.batching
        return pb.AssignedModel(
            name=self.served_name,
            object=self.object,
            uri=self.spec.source.uri,
            digest=self.spec.source.digest or "",
            residency=RESIDENCIES[self.spec.residency],
            batching=pb.Batching(max_size=batching.max_size, max_delay_milliseconds=batching.max_delay_milliseconds),
        )


def paused(obj: Object) -> bool:
    """Whether the object carries the pause annotation with a true value."""
    value = obj["metadata"].get("annotations", {}).get(names.ANNOTATION_PAUSED, "false")
    return value.lower() not in ("false", "no", "0", "")


def deleting(obj: Object) -> bool:
    """Whether the object is on its way out."""
    return "deletionTimestamp" in obj["metadata"]


def served_name(obj: Object) -> str:
    """What clients call the model of an object, valid or not."""
    return str((obj.get("spec") or {}).get("modelName") or obj["metadata"]["name"])


def budget_name(obj: Object) -> str:
    """The WeightBudget that a model names."""
    return str(((obj.get("spec") or {}).get("budgetRef") or {}).get("name", ""))


def judge_model(
    obj: Object, *, budget: Object | None, namesakes: Sequence[Object], placed: bool = False
) -> Model | Rejection:
    """The model of an InferenceModel, or why it is not accepted.

    Args:
        obj: the InferenceModel.
        budget: its WeightBudget, or None when there is none.
        namesakes: every InferenceModel of the budget with the same served name, this one included.
        placed: workers have it already. A new source that names no store of theirs is then refused by them, as any that
            they cannot read, and they serve on from the old one.
    """
    spec = parse_model(obj)
    if isinstance(spec, Rejection):
        return spec
    namespace, name = obj["metadata"]["namespace"], obj["metadata"]["name"]
    wanted = spec.budget_ref.name
    if budget is None:
        return Rejection(
            Reason.BUDGET_NOT_FOUND,
            f"WeightBudget '{wanted}' does not exist in namespace '{namespace}': create it, or name another in "
            "spec.budgetRef of a new InferenceModel",
        )
    if deleting(budget):
        return Rejection(Reason.BUDGET_NOT_FOUND, f"WeightBudget '{wanted}' is being deleted")
    keeper = min((o for o in namesakes if not deleting(o)), key=_age, default=obj)
    if keeper["metadata"]["uid"] != obj["metadata"]["uid"]:
        return Rejection(
            Reason.NAME_CONFLICT,
            f"modelName '{served_name(obj)}' belongs to InferenceModel '{keeper['metadata']['name']}', which is older: "
            "choose another spec.modelName, or delete the other",
        )
    missing = _unlisted_claim(spec, budget)
    if missing is not None and not placed:
        return missing
    return Model(uid=obj["metadata"]["uid"], namespace=namespace, name=name, served_name=served_name(obj), spec=spec)


def _age(obj: Object) -> tuple[str, str]:
    return obj["metadata"].get("creationTimestamp", ""), obj["metadata"]["name"]


def _unlisted_claim(spec: InferenceModelSpec, budget: Object) -> Rejection | None:
    scheme, _, rest = spec.source.uri.partition("://")
    if scheme != "pvc":
        return None
    claim = rest.partition("/")[0]
    stores = (budget.get("spec") or {}).get("modelStores") or ()
    listed = [store["persistentVolumeClaim"]["claimName"] for store in stores]
    if claim in listed:
        return None
    hint = validation.nearest(claim, listed)
    known = f"did you mean '{hint}'?" if hint else f"it lists {', '.join(sorted(listed)) or 'none'}"
    return Rejection(
        Reason.MODEL_STORE_NOT_FOUND,
        f"spec.source.uri names the claim '{claim}', which WeightBudget '{budget['metadata']['name']}' does not list under "
        f"spec.modelStores: {known}",
    )
