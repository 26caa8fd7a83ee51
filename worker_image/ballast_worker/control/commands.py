# SPDX-License-Identifier: Apache-2.0
"""Subcommands of `ballast-worker` that look and do not serve."""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import yaml

from ballast_contract.config import WorkerConfig
from ballast_contract.quantities import human
from ballast_worker.serving.shown import cut

_EXIT_FAILED: Final = 1
_EXIT_REFUSED: Final = 3
_ASK_SECONDS: Final = 10.0


class CommandError(Exception):
    """A command that cannot be carried out; the message says why and what to do."""


def run(command: str, config: WorkerConfig, parsed: argparse.Namespace) -> int:
    """Carry out a subcommand; returns the exit code."""
    commands: Mapping[str, Callable[[WorkerConfig, argparse.Namespace], int]] = {
        "check-config": _check_config,
        "plan": _plan,
        "explain": _explain,
        "regions": _regions,
    }
    try:
        return commands[command](config, parsed)
    except CommandError as error:
        sys.stderr.write(f"ballast-worker {command}: {error}\n")
        return _EXIT_FAILED


def _check_config(config: WorkerConfig, parsed: argparse.Namespace) -> int:
    del parsed
    sys.stdout.write(yaml.safe_dump(config.model_dump(mode="json", by_alias=True), sort_keys=False))
    return 0


def _plan(config: WorkerConfig, parsed: argparse.Namespace) -> int:
    """Builds what the store does not have, as a start would, and makes the plans; nothing is reserved."""
    from ballast_worker.control.main import prepare_process  # noqa: PLC0415

    prepare_process(config)
    from google.protobuf.json_format import MessageToDict  # noqa: PLC0415

    from ballast_worker.control import hostplan_text, preview, report_plan  # noqa: PLC0415 - imports JAX
    from ballast_worker.control.machine import Machine  # noqa: PLC0415
    from ballast_worker.device.plan_text import render  # noqa: PLC0415

    try:
        found = preview.plan(config, Machine(config), say=_say)
    except preview.PreviewError as error:
        raise CommandError(str(error)) from error
    for name, failure in found.refused.items():
        _say(f"{name}: left out: {failure.reason}: {failure.message}")
    if parsed.json:
        _print(MessageToDict(report_plan.plan_message(found.plan, found.host, None), preserving_proto_field_name=True))
    else:
        _print(f"{render(found.plan)}\n\n{hostplan_text.render(found.host)}")
    return 0 if found.fits else _EXIT_REFUSED


def _explain(config: WorkerConfig, parsed: argparse.Namespace) -> int:
    query = urllib.parse.urlencode({"limit": parsed.limit} | ({"model": parsed.model} if parsed.model else {}))
    decisions = _ask(config, f"/explain?{query}")
    try:
        rows = [_decision(made) for made in decisions]
    except (LookupError, TypeError, ValueError, AttributeError, ArithmeticError, OSError) as error:
        raise CommandError(
            f"what answers on port {config.serving.introspection_port} of this machine tells no decisions: is it a worker "
            "of this release (serving.introspectionPort)?"
        ) from error
    if parsed.json:
        _print(decisions)
    else:
        _table([("TIME", "MODEL", "KIND", "VERDICT", "NEEDED", "FREE", "LARGEST", "EVICTED", "WHY"), *rows])
    return 0


def _decision(made: Mapping[str, Any]) -> tuple[str, ...]:
    when = datetime.fromtimestamp(made["unix_seconds"], UTC).strftime("%H:%M:%S")
    evicted = ",".join(made["evicted"]) or "-"
    why = made.get("failure", {}).get("message", "-")
    sizes = [human(int(made[name])) for name in ("needed_bytes", "free_bytes", "largest_free_bytes")]
    return when, str(made["model"]), str(made["kind"]), str(made["verdict"]), *sizes, evicted, str(why)


def _regions(config: WorkerConfig, parsed: argparse.Namespace) -> int:
    """Looks at the pool itself, or removes one, so that no worker has to run."""
    if parsed.remove is not None:
        return _remove(parsed.remove)
    from ballast_worker.bundle.digests import WEIGHTS_PREFIX  # noqa: PLC0415
    from ballast_worker.control.machine import pool_directory  # noqa: PLC0415 - imports JAX
    from ballast_worker.host.errors import HostPoolError  # noqa: PLC0415
    from ballast_worker.host.survey import survey  # noqa: PLC0415

    try:
        found = survey(pool_directory(config))
    except HostPoolError as error:
        raise CommandError(str(error)) from error
    if parsed.json:
        _print({"directory": str(found.path), **{k: v for k, v in asdict(found).items() if k != "path"}})
        return 0
    capacity = found.segments * found.segment_bytes
    _print(f"{found.path}: {human(found.used_bytes)} of {human(capacity)} in {found.segments} segments")
    rows = [("MODEL", "WEIGHTS", "SIZE", "STATE", "IN TRANSFER", "KEPT")]
    rows += [
        (
            region.name,
            region.digest.removeprefix(WEIGHTS_PREFIX)[:12],
            human(region.host_bytes),
            "ready" if region.ready else f"filling {human(region.filled)}",
            "yes" if region.in_transfer else "no",
            "yes" if region.kept else "no",
        )
        for region in found.regions
    ]
    _table(rows)
    return 0


def _remove(directory: Path) -> int:
    from ballast_worker.host.errors import HostPoolError  # noqa: PLC0415
    from ballast_worker.host.removal import remove  # noqa: PLC0415

    try:
        gone = remove(directory)
    except HostPoolError as error:
        raise CommandError(str(error)) from error
    if not gone:
        raise CommandError(f"a process uses the host pool at {directory}: end it, and try again")
    _print(f"{directory}: no host pool any more")
    return 0


def _ask(config: WorkerConfig, page: str) -> Any:
    """A page of the worker that runs with this configuration on this machine."""
    address = f"http://127.0.0.1:{config.serving.introspection_port}{page}"
    try:
        with urllib.request.urlopen(address, timeout=_ASK_SECONDS) as response:
            return json.load(response)
    except (OSError, http.client.HTTPException, ValueError, RecursionError) as error:
        raise CommandError(
            f"no worker answers at {address} ({cut(' '.join(str(error).split()))}): is one running with this configuration "
            "(serving.introspectionPort), and on this machine?"
        ) from error


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")


def _print(value: Any) -> None:
    sys.stdout.write(f"{value if isinstance(value, str) else json.dumps(value, indent=2)}\n")


def _table(rows: Sequence[tuple[str, ...]]) -> None:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        _print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())
