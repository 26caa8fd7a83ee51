# SPDX-License-Identifier: Apache-2.0
"""Which models a simulated pool serves: those of the WeightBudget among all that a file has, with their sizes."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ballast_contract import config, validation
from ballast_operator.api.inferencemodel import Coverage, InferenceModelSpec, ModelSize
from ballast_operator.edge.simulation_input import InputError, size
from ballast_operator.edge.simulation_objects import Entry
from ballast_operator.placement.model import ModelDemand


@dataclass(frozen=True, slots=True)
class Model:
    """An InferenceModel of a file, and what it says."""

    entry: Entry
    spec: InferenceModelSpec

    @property
    def served_name(self) -> str:
        """What clients call."""
        return self.spec.model_name or self.entry.name

    @property
    def budget(self) -> str:
        """The WeightBudget that it belongs to, with its namespace where that is known."""
        name = self.spec.budget_ref.name
        return f"{self.entry.namespace}/{name}" if self.entry.namespace else name


def single(budgets: Sequence[Entry], path: str) -> Entry:
    """The one WeightBudget.

    Raises:
        InputError: there are more.
    """
    if len(budgets) > 1:
        names = ", ".join(f"{b.namespace}/{b.name}" if b.namespace else b.name for b in budgets)
        raise InputError(
            f"{path} has {len(budgets)} WeightBudgets ({names}): keep one, "
            "as `kubectl get weightbudget.ballast.dev NAME -o yaml` prints it"
        )
    return budgets[0]


def of_budget(entries: Iterable[Entry], budget: Entry, path: str) -> tuple[list[Model], Counter[str]]:
    """The models of a WeightBudget, and how many others there are by theirs.

    A namespace that one of the two does not name, as in a file that is not applied yet, is that of the other.

    Raises:
        InputError: there is none, an object breaks a rule, or two of the models cannot be in one pool.
    """
    models, others = [], Counter[str]()
    for entry in entries:
        model = Model(entry, entry.read(InferenceModelSpec, "spec"))
        elsewhere = entry.namespace and budget.namespace and entry.namespace != budget.namespace
        if model.spec.budget_ref.name == budget.name and not elsewhere:
            models.append(model)
        else:
            others[model.budget] += 1
    if not models:
        raise InputError(
            f"{path} has no model of {budget.where}{_within(budget)}; it has those of {', '.join(sorted(others))}: "
            "look at metadata.namespace and spec.budgetRef"
        )
    namespaces = sorted({model.entry.namespace for model in models} - {""})
    if len(namespaces) > 1:
        raise InputError(
            f"{path} has models of WeightBudgets '{budget.name}' in the namespaces {', '.join(namespaces)}: "
            f"write metadata.namespace in {budget.where}"
        )
    _refuse_twins(models, path)
    return models, others


def called(models: Iterable[Model]) -> dict[str, str]:
    """Names of objects by each name that people may write; what clients call comes before names of objects."""
    models = tuple(models)
    return {m.entry.name: m.entry.name for m in models} | {m.served_name: m.entry.name for m in models}


def sizes(given: Iterable[str], names: Mapping[str, str], path: str) -> dict[str, int]:
    """Bytes by model from MODEL=SIZE.

    Raises:
        InputError: it is not spelled so, or names no model, or one twice.
    """
    found: dict[str, int] = {}
    for text in given:
        name, separator, amount = text.rpartition("=")
        if not separator:
            raise InputError(f"--size {text}: write MODEL=SIZE, as in minilm=90Mi")
        model = names.get(name)
        if model is None:
            hint = validation.nearest(name, names)
            raise InputError(f"--size {name}: {path} has no such model" + (f": did you mean '{hint}'?" if hint else ""))
        if model in found:
            raise InputError(f"--size {name}: the size of '{model}' is given twice: keep one")
        found[model] = size(amount, f"--size {name}")
    return found


def demands(models: Iterable[Model], given: Mapping[str, int]) -> list[ModelDemand]:
    """The models as placement reads them; a size that is given counts before the one that was measured.

    Raises:
        InputError: the size of a model is not known.
    """
    found, unknown = [], []
    for model in models:
        name, measured = model.entry.name, model.entry.read(ModelSize, "status", "size")
        where = f"{model.entry.where}: status.size"
        weights = given.get(name)
        if weights is None and measured.weights:
            weights = size(measured.weights, f"{where}.weights")
        if weights is None:
            unknown.append(name)
            continue
        found.append(
            ModelDemand(
                name=name,
                title=model.served_name,
                weights_bytes=weights,
                code_bytes=size(measured.code, f"{where}.code") if measured.code else 0,
                pinned=model.spec.residency is config.ResidencyWish.DEVICE,
                replicas=model.spec.replicas,
                all_workers=model.spec.coverage is Coverage.ALL_WORKERS,
            )
        )
    if unknown:
        options = " ".join(f"--size {name}=SIZE" for name in unknown[:5])
        more = f", and so for {len(unknown) - 5} more" if len(unknown) > 5 else ""
        raise InputError(f"the size of {', '.join(map(repr, unknown[:5]))} is in no status: give {options}{more}")
    return found


def _within(budget: Entry) -> str:
    return f" in namespace {budget.namespace}" if budget.namespace else ""


def _refuse_twins(models: Sequence[Model], path: str) -> None:
    names: dict[str, str] = {}
    for model in models:
        name = model.entry.name
        if name in names.values():
            raise InputError(f"{path} has InferenceModel '{name}' twice: keep one")
        other = names.setdefault(model.served_name, name)
        if other != name:
            raise InputError(
                f"{path}: InferenceModels '{other}' and '{name}' are both called '{model.served_name}', of which a pool serves "
                "the older alone: keep one"
            )
