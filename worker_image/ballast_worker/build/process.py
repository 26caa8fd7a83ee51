# SPDX-License-Identifier: Apache-2.0
"""The builder process: `python -m ballast_worker.build.process`, one bundle per process.

It reads one request as JSON from standard input and writes one JSON object per line to standard output. It is freshly
executed, never forked, has a JAX client of its own and dies with the thread that started it, so that a bundle which
crashes or hangs the compiler costs nothing but itself.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import warnings
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, TextIO

from ballast_contract.reasons import Reason
from ballast_worker.build.builder import CONTEXT_ALLOWANCE, Dimensions

_PR_SET_PDEATHSIG: Final = 1
_EXHAUSTED: Final = ("RESOURCE_EXHAUSTED", "out of memory", "Out of memory")


def main() -> int:
    """Serve one request."""
    events = _own_output()
    request = json.loads(sys.stdin.read())
    _die_with(int(request["parent"]))
    _step_back()
    _environment(request)
    try:
        _serve(request, events)
    except Exception as error:  # noqa: BLE001 - whatever the compiler raises is the answer
        reason, message = _failure(error, request)
        _emit(events, event="failed", reason=reason, message=message)
        return 1
    _emit(events, event="finished")
    return 0


def _serve(request: Mapping[str, Any], events: TextIO) -> None:
    from ballast_worker.build.card import card_memory  # noqa: PLC0415 - nothing may import JAX before _environment

    card = card_memory(request["ordinal"]) if request["backend"] == "cuda" else None
    if card is not None:
        usable = max(0, request["memoryBytes"] - CONTEXT_ALLOWANCE)
        os.environ["XLA_PYTHON_CLIENT_MEM_FRACTION"] = f"{min(1.0, usable / card.total):.6f}"
    from ballast_worker.build import runtime, work  # noqa: PLC0415

    device = work.device(request["backend"], request["ordinal"])
    described = runtime.describe(request["backend"], device.device_kind)
    _emit(events, event="runtime", runtime=asdict(described), deviceBytes=card.total if card else None)
    if not request["programs"]:
        return
    work.build(
        bundle=Path(request["bundle"]),
        digest=request["digest"],
        programs=[_dimensions(program) for program in request["programs"]],
        store=Path(request["store"]),
        runtime=described,
        device=device,
        memory_bytes=request["memoryBytes"],
        context=lambda: _context(request, device, card.used if card else None),
        emit=lambda **fields: _emit(events, **fields),
    )


def _context(request: Mapping[str, Any], device: Any, used_before: int | None) -> int:
    """Device memory of this process besides its allocator's pool; 0 where that cannot be told."""
    from ballast_worker.build.card import card_memory  # noqa: PLC0415

    now = card_memory(request["ordinal"]) if used_before is not None else None
    if now is None or used_before is None:
        return 0
    return max(0, now.used - used_before - int((device.memory_stats() or {}).get("pool_bytes", 0)))


def _dimensions(program: list[list[Any]]) -> Dimensions:
    return tuple((str(name), int(value)) for name, value in program)


def _failure(error: Exception, request: Mapping[str, Any]) -> tuple[Reason, str]:
    from ballast_worker.build.errors import ProgramTooLargeError, StoreError  # noqa: PLC0415
    from ballast_worker.bundle.errors import BundleError  # noqa: PLC0415

    if isinstance(error, BundleError):
        return Reason(error.reason), str(error)
    if isinstance(error, StoreError):
        return Reason.LOAD_FAILED_WILL_RETRY, str(error)
    if isinstance(error, ProgramTooLargeError):
        return Reason.INSUFFICIENT_DEVICE_MEMORY, str(error)
    text = f"{type(error).__name__}: {error}"
    if any(mark in text for mark in _EXHAUSTED):
        return Reason.INSUFFICIENT_DEVICE_MEMORY, (
            f"building needs more than the {request['memoryBytes']} bytes of device memory that the builder may take: "
            f"{text[:2000]}"
        )
    return Reason.LOAD_FAILED_PERMANENT, f"the bundle cannot be compiled and run: {text[:4000]}"


def _environment(request: Mapping[str, Any]) -> None:
    os.environ["JAX_PLATFORMS"] = request["backend"]
    os.environ["JAX_ENABLE_X64"] = "1"
    os.environ["JAX_ENABLE_COMPILATION_CACHE"] = "0"
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    for inherited in ("XLA_PYTHON_CLIENT_ALLOCATOR", "XLA_PYTHON_CLIENT_MEM_FRACTION"):
        os.environ.pop(inherited, None)
    warnings.simplefilter("ignore")


def _own_output() -> TextIO:
    """Keep standard output for events; whatever libraries print there goes to standard error."""
    events = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    return events


def _emit(events: TextIO, **fields: Any) -> None:
    events.write(json.dumps(fields) + "\n")
    events.flush()


def _die_with(parent: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it died before the line above
        raise SystemExit(1)


def _step_back() -> None:
    """Let the kernel take this process before the one that serves, for processor time and for memory."""
    os.nice(10)
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("1000", encoding="ascii")


if __name__ == "__main__":
    sys.exit(main())
