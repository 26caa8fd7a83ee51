# SPDX-License-Identifier: Apache-2.0
"""`ballast-simulate`: try a WeightBudget on a trace of one's own before it is applied."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from ballast_contract import __version__, quantities
from ballast_contract.command_line import Parser
from ballast_operator.api.weightbudget import PlacementMode, WeightBudgetSpec
from ballast_operator.api.workers import MAX_WORKERS
from ballast_operator.edge import simulation_input, simulation_pool
from ballast_operator.edge.simulation_capacity import Capacity, capacity
from ballast_operator.edge.simulation_input import InputError
from ballast_operator.edge.simulation_objects import objects
from ballast_operator.placement.model import WorkerCapacity
from ballast_operator.placement.simulation import Outcome, Rules, Simulation, operators_rule

_EXAMPLES: Final = """\
The trace is a CSV file: seconds,model[,requests[,milliseconds]], in order of time; milliseconds is the device time of one
request. Models are InferenceModels as `kubectl get inferencemodels.ballast.dev -o yaml` prints them, with the sizes that
were measured; a size that is not there comes from --size. Those of other WeightBudgets are left out.

Device memory is that of spec.device; from status.plan comes what the spec does not say, and what it ends up with is printed.

examples:
  a pool that runs      kubectl get weightbudget.ballast.dev default -o yaml > budget.yaml
                        kubectl get inferencemodels.ballast.dev -o yaml > models.yaml
                        ballast-simulate --budget budget.yaml --models models.yaml --trace calls.csv
  with more workers     ballast-simulate --budget budget.yaml --models models.yaml --trace calls.csv --workers 6
  before it runs        ballast-simulate ... --capacity 52Gi --size minilm=90Mi --size other=7Gi
"""


@dataclass(frozen=True, slots=True)
class _Result:
    """What came of a trace, and what it was played against."""

    outcome: Outcome
    models: int
    left_out: Counter[str]
    capacity: Capacity


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; ends the process with 0, or 2 when the input makes no sense."""
    given = command_line().parse_args(argv)
    try:
        result = _simulate(given)
    except InputError as error:
        print(f"ballast-simulate: {' '.join(str(error).split())}", file=sys.stderr)
        sys.exit(2)
    print(json.dumps(_figures(result)) if given.json else _table(result))


def command_line() -> argparse.ArgumentParser:
    """The parser of its arguments."""
    parser = Parser(
        prog="ballast-simulate",
        description="Plays a trace of calls against a WeightBudget: load balance, moves, reloads, refusals.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ballast-simulate {__version__}")
    parser.add_argument("--budget", metavar="FILE", required=True, help="a WeightBudget, as YAML or JSON")
    parser.add_argument("--models", metavar="FILE", required=True, help="its InferenceModels, as YAML or JSON")
    parser.add_argument("--trace", metavar="FILE", required=True, help="the calls, as CSV; - reads standard input")
    parser.add_argument("--workers", type=int, metavar="N", help="workers (default: spec.workers.replicas)")
    parser.add_argument(
        "--capacity",
        metavar="SIZE",
        help="device memory for weights and code on each worker (default: by spec.device and status.plan)",
    )
    parser.add_argument(
        "--size", action="append", default=[], metavar="MODEL=SIZE", help="bytes of a model; may be repeated"
    )
    parser.add_argument(
        "--milliseconds",
        default="10",
        metavar="N",
        help="device time of a request whose line in the trace gives none (%(default)s)",
    )
    parser.add_argument(
        "--link", default="25Gi", metavar="SIZE", help="bytes per second from host to device (%(default)s)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object instead of a table")
    return parser


def _simulate(given: argparse.Namespace) -> _Result:
    budget = simulation_pool.single(objects(given.budget, "WeightBudget"), given.budget)
    spec = budget.read(WeightBudgetSpec, "spec")
    chosen, left_out = simulation_pool.of_budget(objects(given.models, "InferenceModel"), budget, given.models)
    names = simulation_pool.called(chosen)
    models = simulation_pool.demands(chosen, simulation_pool.sizes(given.size, names, given.models))
    count = spec.workers.replicas if given.workers is None else given.workers
    if not 1 <= count <= MAX_WORKERS:
        raise InputError(f"{count} workers cannot be simulated: give --workers 1 or more, {MAX_WORKERS} at most")
    if given.capacity is None:
        room = capacity(budget, spec.device)
    else:
        room = Capacity(simulation_input.size(given.capacity, "--capacity"), "--capacity")
    link = simulation_input.size(given.link, "--link")
    otherwise_ms = simulation_input.milliseconds(given.milliseconds, "--milliseconds")
    if not (link and otherwise_ms and room.nbytes):
        raise InputError("--link, --milliseconds and --capacity have to be above 0")
    workers = [WorkerCapacity(f"worker-{number}", capacity_bytes=room.nbytes) for number in range(count)]
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
    source = "standard input" if given.trace == "-" else given.trace
    lines = simulation_input.text(given.trace).splitlines()
    outcome = simulation.run(simulation_input.arrivals(lines, names, source, otherwise_ms=otherwise_ms))
    return _Result(outcome, len(models), left_out, room)


def _figures(result: _Result) -> dict[str, Any]:
    return {
        "models": result.models,
        "models_left_out": result.left_out.total(),
        "capacity_bytes": result.capacity.nbytes,
        "capacity_source": result.capacity.source,
        **dataclasses.asdict(result.outcome),
        "refused": dict(result.outcome.refused),
    }


def _table(result: _Result) -> str:
    outcome, room = result.outcome, result.capacity
    refused, left_out = sum(outcome.refused.values()), result.left_out.total()
    others = f", without {left_out} of {', '.join(sorted(result.left_out)[:5])}" if left_out else ""
    rows = [
        ("models", f"{result.models}{others}"),
        ("capacity", f"{quantities.human(room.nbytes)} for weights and code on each worker: {room.source}"),
        ("requests", f"{outcome.requests} in {outcome.seconds:.0f} s"),
        ("refused", f"{refused}" + (f" ({', '.join(sorted(outcome.refused)[:5])})" if refused else "")),
        ("busiest worker", f"{outcome.max_load:.3f} device seconds per second"),
        ("spread", f"{outcome.spread:.3f} (standard deviation over mean)"),
        ("repacks", f"{outcome.repacks}"),
        ("moves", f"{outcome.moves}, {quantities.human(outcome.bytes_moved)}"),
        ("reloads", f"{outcome.reloads}, {outcome.reload_seconds:.1f} s"),
    ]
    loads = [(name, f"{load:.3f}") for name, load in outcome.loads.items()]
    return "\n".join(f"{name:<16} {value}".rstrip() for name, value in [*rows, ("", ""), ("WORKER", "LOAD"), *loads])


if __name__ == "__main__":
    main()
