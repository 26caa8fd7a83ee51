# SPDX-License-Identifier: Apache-2.0
"""`kubectl ballast`: why a model is where it is, and where the device memory goes."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from typing import Any, Final

from ballast_contract import __version__, names, quantities, validation
from ballast_contract.command_line import Parser
from ballast_operator.cluster.resources import BUDGETS, MODELS
from ballast_operator.edge.kubectl import Kubectl, KubectlError

_EXAMPLES: Final = """\
It uses kubectl and your own rights: to get the objects, and for the scores of an explanation to forward a port of the
operator's pod.

examples:
  kubectl ballast explain minilm
  kubectl ballast explain all-MiniLM-L6-v2 --namespace team-a
  kubectl ballast plan
  kubectl ballast plan default --json
"""

_OPERATORS: Final = "app.kubernetes.io/name=ballast,app.kubernetes.io/component=operator"


class UnknownName(Exception):  # noqa: N818 - an answer to a person, not a fault
    """No object is called so; the message names the nearest."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the command; ends the process with 0, or 1 when kubectl refuses or a name is not known."""
    given = command_line().parse_args(argv)
    options = [
        part for name in ("context", "kubeconfig") if (value := getattr(given, name)) for part in (f"--{name}", value)
    ]
    kubectl = Kubectl(tuple(options))
    try:
        namespace = given.namespace or kubectl.namespace()
        print(given.run(kubectl, namespace, given))
    except (KubectlError, UnknownName) as error:
        print(f"kubectl ballast: {error}", file=sys.stderr)
        sys.exit(1)


def command_line() -> argparse.ArgumentParser:
    """The parser of its arguments."""
    common = Parser(add_help=False)
    common.add_argument("-n", "--namespace", metavar="NAME", help="of the objects (default: that of the context)")
    common.add_argument("--context", metavar="NAME", help="context of the kubeconfig")
    common.add_argument("--kubeconfig", metavar="FILE", help="kubeconfig (default: as kubectl finds it)")
    common.add_argument("--json", action="store_true", help="print JSON")
    parser = Parser(
        prog="kubectl ballast",
        description="Asks Ballast why.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"kubectl-ballast {__version__}")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    explain = commands.add_parser(
        "explain", parents=[common], help="why a model is where it is, and what would have to change"
    )
    explain.add_argument("model", metavar="MODEL", help="name of an InferenceModel, or what clients call it")
    explain.add_argument(
        "--operator-namespace", metavar="NAME", help="where the operator runs (default: looked for in all namespaces)"
    )
    explain.set_defaults(run=_explain)
    plan = commands.add_parser("plan", parents=[common], help="the device memory plan of a pool's worst worker")
    plan.add_argument("budget", metavar="BUDGET", nargs="?", help="name of a WeightBudget (default: the only one)")
    plan.set_defaults(run=_plan)
    return parser


def _explain(kubectl: Kubectl, namespace: str, given: argparse.Namespace) -> str:
    found = kubectl.get(f"{MODELS.plural}.{MODELS.group}", "--namespace", namespace)["items"]
    by_name = {(m["spec"].get("modelName") or m["metadata"]["name"]): m for m in found}
    model = _named(by_name | {m["metadata"]["name"]: m for m in found}, given.model, MODELS.kind, namespace)
    name = model["metadata"]["name"]
    try:
        page, obstacle = _page(kubectl, namespace, name, given.operator_namespace), ""
    except KubectlError as error:
        page, obstacle = {}, str(error)
    if given.json:
        return json.dumps({"status": model.get("status", {}), "placement": page, "obstacle": obstacle}, indent=2)
    lines = [f"InferenceModel {namespace}/{name}, WeightBudget {model['spec']['budgetRef']['name']}", ""]
    lines += _table(
        ("CONDITION", "STATUS", "REASON", "MESSAGE"),
        [(c["type"], c["status"], c["reason"], c.get("message", "")) for c in _conditions(model)],
    )
    if obstacle:
        return "\n".join([*lines, "", f"Scores are not known: {obstacle}"])
    return "\n".join([*lines, "", *_placement(page)])


def _page(kubectl: Kubectl, namespace: str, model: str, operator_namespace: str | None) -> dict[str, Any]:
    """What the leader says of a model; standbys listen to nobody, so each pod is asked until one answers."""
    where = ("--namespace", operator_namespace) if operator_namespace else ("--all-namespaces",)
    pods = kubectl.get("pods", "--selector", _OPERATORS, *where)["items"]
    trouble = "no pod of the operator was found: give --operator-namespace"
    for pod in pods:
        metadata = pod["metadata"]
        query = {"namespace": namespace, "model": model}
        try:
            text = kubectl.page(metadata["namespace"], metadata["name"], names.INTROSPECTION_PORT, "/explain", query)
            page: dict[str, Any] = json.loads(text)
        except KubectlError as error:
            trouble = f"pod {metadata['name']}: {error}"
        else:
            return page
    raise KubectlError(trouble)


def _placement(page: Mapping[str, Any]) -> list[str]:
    lines = [page["message"], ""] if page["message"] else []
    if not page["candidates"]:
        return lines or ["it was not part of a placement yet"]
    wish = "pinned" if page["pinned"] else "swapped on demand"
    lines += [
        f"needs   {quantities.human(page['weightsBytes'])} of weights ({wish}), {quantities.human(page['codeBytes'])} of code",
        f"demand  {page['requestsPerSecond']:.3g} requests/s, {page['utilization']:.3g} device seconds per second",
        f"wanted  on {page['wanted']} workers",
        f"moves   for a gain above {page['hysteresisPercent']} %",
        "",
    ]
    known = any(found.get("reload_bytes_per_second") is not None for found in page["candidates"])
    rows = []
    for found in page["candidates"]:
        there = "here" if found["chosen"] else "possible" if found["feasible"] else "no room"
        memory = quantities.human(found["held_bytes"])
        if found["capacity_bytes"]:
            memory += f" of {quantities.human(found['capacity_bytes'])}"
        reloads = (f"{quantities.human(int(found['reload_bytes_per_second']))}/s",) if known else ()
        scores = f"{found['score']:.2f}", f"{found['compute']:.2f}"
        rows.append((found["worker"], there, *scores, memory, *reloads, found["needs"]))
    heads = ("RELOADS",) if known else ()
    return lines + _table(("WORKER", "", "SCORE", "COMPUTE", "MEMORY", *heads, "WHAT WOULD HAVE TO CHANGE"), rows)


def _plan(kubectl: Kubectl, namespace: str, given: argparse.Namespace) -> str:
    found = kubectl.get(f"{BUDGETS.plural}.{BUDGETS.group}", "--namespace", namespace)["items"]
    by_name = {budget["metadata"]["name"]: budget for budget in found}
    if given.budget is None and len(by_name) != 1:
        listed = ", ".join(sorted(by_name)) or "none"
        raise UnknownName(f"namespace '{namespace}' has {len(by_name)} WeightBudgets ({listed}): name one")
    budget = _named(by_name, given.budget or next(iter(by_name)), BUDGETS.kind, namespace)
    status = budget.get("status") or {}
    plan = status.get("plan", [])
    fits = [c for c in _conditions(budget) if c["type"] == "PlanFits"]
    if given.json:
        return json.dumps({"plan": plan, "shortfall": status.get("shortfall"), "conditions": fits}, indent=2)
    rows = [(line["line"], str(line["bytes"]), line.get("source", ""), line.get("knob", "")) for line in plan]
    rows += [
        ("budget", str(quantities.format_api(sum(quantities.parse_api(str(line["bytes"])) for line in plan))), "", "")
    ]
    lines = [f"WeightBudget {namespace}/{budget['metadata']['name']}", ""]
    lines += _table(("LINE", "BYTES", "SOURCE", "KNOB"), rows) if plan else ["no worker has made its plan yet"]
    if status.get("shortfall"):
        lines += ["", f"missing: {status['shortfall']}"]
    return "\n".join([*lines, *(f"\nPlanFits {c['status']}: {c.get('message', '')}" for c in fits)])


def _named(known: Mapping[str, Any], name: str, kind: str, namespace: str) -> Any:
    if name in known:
        return known[name]
    hint = validation.nearest(name, sorted(known))
    listed = f"it has {', '.join(sorted(known)[:5]) or 'none'}"
    raise UnknownName(
        f"no {kind} '{name}' in namespace '{namespace}': " + (f"did you mean '{hint}'?" if hint else listed)
    )


def _conditions(obj: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    return list((obj.get("status") or {}).get("conditions", []))


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return [
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in (head, *rows)
    ]


if __name__ == "__main__":
    main()
