# SPDX-License-Identifier: Apache-2.0
"""`ballast-simulate`: try a WeightBudget on a trace of one's own before it is applied."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import pydantic
import yaml

from ballast_contract import config, plan_lines, quantities, validation
from ballast_contract.command_line import Parser
from ballast_operator.api.inferencemodel import Coverage, InferenceModelSpec
from ballast_operator.api.weightbudget import PlacementMode, WeightBudgetSpec
from ballast_operator.placement.model import ModelDemand, WorkerCapacity
from ballast_operator.placement.simulation import Arrival, Outcome, Rules, Simulation, operators_rule

S = TypeVar("S", bound=pydantic.BaseModel)

_EXAMPLES: Final = """\
The trace is a CSV file: seconds,model[,requests[,milliseconds]], in order of time; milliseconds is the device time of one
request. Models are InferenceModels as `kubectl get inferencemodels.ballast.dev -o yaml` prints them, with the sizes that
were measured; a size that is not there comes from --size.

examples:
  a pool that runs      kubectl get weightbudget.ballast.dev default -o yaml > budget.yaml
                        kubectl get inferencemodels.ballast.dev -o yaml > models.yaml
                        ballast-simulate --budget budget.yaml --models models.yaml --trace calls.csv
  with more workers     ballast-simulate --budget budget.yaml --models models.yaml --trace calls.csv --workers 6
  before it runs        ballast-simulate ... --capacity 52Gi --size minilm=90Mi --size other=7Gi
"""

_LONGEST_SECONDS: Final = 366 * 86_400.0
"""Of a trace; every minute of it is looked at."""


class InputError(Exception):
    """Something that was given cannot be used; the message says what, where and what to write."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; ends the process with 0, or 2 when the input makes no sense."""
    given = command_line().parse_args(argv)
    try:
        outcome = _simulate(given)
    except InputError as error:
        print(f"ballast-simulate: {error}", file=sys.stderr)
        sys.exit(2)
    print(json.dumps(_figures(outcome)) if given.json else _table(outcome))


def command_line() -> argparse.ArgumentParser:
    """The parser of its arguments."""
    parser = Parser(
        prog="ballast-simulate",
        description="Plays a trace of calls against a WeightBudget: load balance, moves, reloads, refusals.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--budget", metavar="FILE", required=True, help="a WeightBudget, as YAML")
    parser.add_argument("--models", metavar="FILE", required=True, help="its InferenceModels, as YAML")
    parser.add_argument("--trace", metavar="FILE", required=True, help="the calls, as CSV; - reads standard input")
    parser.add_argument("--workers", type=int, metavar="N", help="workers (default: spec.workers.replicas)")
    parser.add_argument(
        "--capacity",
        metavar="SIZE",
        help="device memory for weights and code on each worker (default: by status.plan, else by spec.device)",
    )
    parser.add_argument(
        "--size", action="append", default=[], metavar="MODEL=SIZE", help="bytes of a model; may be repeated"
    )
    parser.add_argument(
        "--milliseconds",
        type=float,
        default=10.0,
        metavar="N",
        help="device time of a request whose line in the trace gives none (%(default)s)",
    )
    parser.add_argument(
        "--link", default="25Gi", metavar="SIZE", help="bytes per second from host to device (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser


def _simulate(given: argparse.Namespace) -> Outcome:
    budget = _single(_objects(given.budget, "WeightBudget"), given.budget)
    spec = _spec(WeightBudgetSpec, budget, given.budget)
    models = _models(_objects(given.models, "InferenceModel"), given.models, _sizes(given.size))
    count = spec.workers.replicas if given.workers is None else given.workers
    if count < 1:
        raise InputError(f"{count} workers cannot serve anything: give --workers 1 or more")
    capacity = _bytes(given.capacity, "--capacity") if given.capacity else _capacity(budget, spec, given.budget)
    link = _bytes(given.link, "--link")
    if link < 1 or given.milliseconds <= 0:
        raise InputError(f"--link {given.link} and --milliseconds {given.milliseconds:g} have to be above 0")
    workers = [WorkerCapacity(f"worker-{number}", capacity_bytes=capacity) for number in range(count)]
    repack = spec.placement.repack
    simulation = Simulation(
        models,
        workers,
        Rules(link, repack.first_after_compute_seconds, repack.every_compute_seconds),
        operators_rule(
            hysteresis_percent=spec.placement.hysteresis_percent,
            everywhere=spec.placement.mode is PlacementMode.ALL,
        ),
    )
    called = {model.title: model.name for model in models} | {model.name: model.name for model in models}
    text = sys.stdin.read() if given.trace == "-" else _read(given.trace)
    return simulation.run(arrivals(text.splitlines(), called, given.trace, otherwise_ms=given.milliseconds))


def arrivals(lines: Iterable[str], called: Mapping[str, str], source: str, *, otherwise_ms: float) -> Iterable[Arrival]:
    """The calls of a trace.

    Args:
        lines: seconds,model[,requests[,milliseconds]]; empty lines, # comments and a header that begins with "seconds" are
            passed over.
        called: Models by each name that the trace may use.
        source: What messages call the file.
        otherwise_ms: Device milliseconds of a request whose line gives none.

    Returns:
        Arrivals whose seconds count from the first line, which may be a time of day.

    Raises:
        InputError: there is no call, or a line cannot be read, is out of order, more than a year after the first, or names a
            model that is not there.
    """
    first, before, header = None, 0.0, True
    for number, line in enumerate(lines, 1):
        fields = [part.strip() for part in line.partition("#")[0].split(",")]
        if fields == [""]:
            continue
        if header and fields[0] == "seconds":
            header = False
            continue
        header = False
        where = f"{source} line {number}"
        if not 2 <= len(fields) <= 4:
            raise InputError(
                f"{where}: '{line.strip()}' has {len(fields)} fields: write seconds,model[,requests[,milliseconds]]"
            )
        seconds = _number(fields[0], f"{where}: seconds")
        requests = _number(fields[2], f"{where}: requests") if len(fields) > 2 else 1.0
        milliseconds = _number(fields[3], f"{where}: milliseconds") if len(fields) > 3 else otherwise_ms
        if seconds < before:
            raise InputError(f"{where}: {fields[0]} comes after {before:g}: sort the trace by time")
        first = seconds if first is None else first
        if seconds - first > _LONGEST_SECONDS:
            raise InputError(
                f"{where}: {fields[0]} is more than a year after the first call, at {first:g}: write seconds, and a year at most"
            )
        if requests < 1 or requests != int(requests):
            raise InputError(f"{where}: requests is '{fields[2]}': write a whole number from 1 on")
        model = called.get(fields[1])
        if model is None:
            hint = validation.nearest(fields[1], called)
            raise InputError(
                f"{where}: model '{fields[1]}' is not among the models"
                + (f": did you mean '{hint}'?" if hint else f", which are {', '.join(sorted(called)[:5])}")
            )
        before = seconds
        yield Arrival(seconds - first, model, milliseconds / 1000, int(requests))
    if first is None:
        raise InputError(f"{source} has no call: write lines of seconds,model[,requests[,milliseconds]]")


def _number(text: str, what: str) -> float:
    try:
        found = float(text)
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise InputError(f"{what} is '{text}': write a number from 0 on")
    return found


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error


def _objects(path: str, kind: str) -> list[Mapping[str, Any]]:
    """The objects of a kind in a file of YAML documents or Lists of them."""
    try:
        documents = [document for document in yaml.safe_load_all(_read(path)) if document is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        line = f" line {mark.line + 1}" if mark is not None else ""
        raise InputError(f"{path}{line} is no YAML: {getattr(error, 'problem', error)}") from error
    found: list[Mapping[str, Any]] = []
    for document in documents:
        items = document.get("items", [document]) if isinstance(document, dict) else [document]
        found += [item for item in items if isinstance(item, dict) and item.get("kind") == kind]
    if not found:
        kinds = sorted({str(d.get("kind")) for d in documents if isinstance(d, dict)})
        raise InputError(f"{path} has no {kind}; it has {', '.join(kinds) or 'nothing'}")
    return found


def _single(found: Sequence[Mapping[str, Any]], path: str) -> Mapping[str, Any]:
    if len(found) > 1:
        names = ", ".join(str(item.get("metadata", {}).get("name")) for item in found)
        raise InputError(f"{path} has {len(found)} WeightBudgets ({names}): keep one")
    return found[0]


def _spec(model: type[S], obj: Mapping[str, Any], path: str) -> S:
    try:
        return model.model_validate(obj.get("spec") or {})
    except pydantic.ValidationError as error:
        name = obj.get("metadata", {}).get("name", "?")
        raise InputError(f"{path}, {obj['kind']} '{name}': {validation.describe(error, model)}") from error


def _sizes(given: Sequence[str]) -> dict[str, int]:
    found = {}
    for text in given:
        name, separator, size = text.partition("=")
        if not separator:
            raise InputError(f"--size {text}: write MODEL=SIZE, as in minilm=90Mi")
        found[name] = _bytes(size, f"--size {name}")
    return found


def _bytes(text: str, what: str) -> int:
    try:
        return quantities.parse_api(text)
    except quantities.QuantityError as error:
        raise InputError(f"{what}: {error}") from error


def _models(found: Sequence[Mapping[str, Any]], path: str, sizes: Mapping[str, int]) -> list[ModelDemand]:
    models = []
    for obj in found:
        spec = _spec(InferenceModelSpec, obj, path)
        name = str(obj["metadata"]["name"])
        measured = (obj.get("status") or {}).get("size") or {}
        weights = sizes.get(name) or (_bytes(str(measured["weights"]), name) if measured.get("weights") else None)
        if weights is None:
            raise InputError(f"{path}: the size of '{name}' is in no status: give --size {name}=SIZE")
        models.append(
            ModelDemand(
                name=name,
                title=spec.model_name or name,
                weights_bytes=weights,
                code_bytes=_bytes(str(measured["code"]), name) if measured.get("code") else 0,
                pinned=spec.residency is config.ResidencyWish.DEVICE,
                replicas=spec.replicas,
                all_workers=spec.coverage is Coverage.ALL_WORKERS,
            )
        )
    unknown = sorted(sizes.keys() - {model.name for model in models})
    if unknown:
        hint = validation.nearest(unknown[0], [model.name for model in models])
        raise InputError(
            f"--size {unknown[0]}: {path} has no such model" + (f": did you mean '{hint}'?" if hint else "")
        )
    return models


def _capacity(budget: Mapping[str, Any], spec: WeightBudgetSpec, path: str) -> int:
    """What weights and code share on each worker: by the plan where a pool has made one, else budget less slack and scratch."""
    lines = (budget.get("status") or {}).get("plan") or ()
    planned = sum(_bytes(str(line["bytes"]), path) for line in lines if line.get("line") in plan_lines.OF_MODELS)
    if planned:
        return planned
    device = spec.device
    if device.budget is None or quantities.is_percent(device.budget):
        raise InputError(
            f"{path}: spec.device.budget is {device.budget or 'left out'}, which only a worker can turn into bytes: give --capacity"
        )
    usable = quantities.parse_api(device.budget) * (100 - device.weights.slack_percent) // 100
    return max(1, usable - (0 if device.scratch == "auto" else quantities.parse_api(device.scratch)))


def _figures(outcome: Outcome) -> dict[str, Any]:
    return {**dataclasses.asdict(outcome), "refused": dict(outcome.refused)}


def _table(outcome: Outcome) -> str:
    refused = sum(outcome.refused.values())
    rows = [
        ("requests", f"{outcome.requests} in {outcome.seconds:.0f} s"),
        ("refused", f"{refused}" + (f" ({', '.join(sorted(outcome.refused)[:5])})" if refused else "")),
        ("busiest worker", f"{outcome.max_load:.3f} device seconds per second"),
        ("spread", f"{outcome.spread:.3f} (standard deviation over mean)"),
        ("repacks", f"{outcome.repacks}"),
        ("moves", f"{outcome.moves}, {quantities.human(outcome.bytes_moved)}"),
        ("reloads", f"{outcome.reloads}, {outcome.reload_seconds:.1f} s"),
    ]
    loads = [(name, f"{load:.3f}") for name, load in outcome.loads.items()]
    return "\n".join(f"{name:<16} {value}" for name, value in [*rows, ("", ""), ("WORKER", "LOAD"), *loads])


if __name__ == "__main__":
    main()
