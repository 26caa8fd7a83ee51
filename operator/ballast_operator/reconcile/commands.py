# SPDX-License-Identifier: Apache-2.0
"""What a person asks for by annotation, done once for each token: a repack, a compaction."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from ballast_contract import names, quantities
from ballast_contract.reasons import Reason
from ballast_contract.v1 import control_pb2 as pb
from ballast_operator.api.common import MAX_WORD
from ballast_operator.api.weightbudget import CompactionMode
from ballast_operator.cluster.client import Object
from ballast_operator.cluster.resources import BUDGETS
from ballast_operator.fleet.link import LONGEST_CALL_SECONDS, CallError, Link
from ballast_operator.reconcile.conditions import MAX_MESSAGE, timestamp
from ballast_operator.reconcile.pool import Pool
from ballast_operator.reconcile.world import World, budget_key

logger = logging.getLogger(__name__)

_PARALLEL: Final = 16
_AGAIN_SECONDS: Final = 30.0

_MODES: Final = {
    CompactionMode.LAZY: pb.COMPACTION_MODE_FREE,
    CompactionMode.PRELOAD: pb.COMPACTION_MODE_FREE,
    CompactionMode.MOVE: pb.COMPACTION_MODE_MOVE,
}


@dataclass(frozen=True, slots=True)
class Compaction:
    """One compaction: which workers, how, and the models that each is to reload, largest first."""

    mode: CompactionMode
    links: Sequence[Link]
    reload: dict[str, tuple[str, ...]]
    token: str = ""


def token(obj: Object, annotation: str, done: object) -> str:
    """The token of a command that is not done yet; empty without one, or with one that no status could repeat."""
    asked = _asked(obj, annotation)
    return asked if asked and asked != done and len(asked) <= MAX_WORD else ""


def refuse(world: World, budget: Object) -> None:
    """Say which commands are not done because no status could repeat their tokens."""
    for annotation in (names.ANNOTATION_REPACK, names.ANNOTATION_COMPACT):
        asked = _asked(budget, annotation)
        if len(asked) > MAX_WORD:
            note = (
                f"annotation {annotation} has a token of {len(asked)} characters, and the status repeats at most {MAX_WORD}: "
                "nothing is done; give it a shorter one"
            )
            world.events.post(budget, BUDGETS.kind, "Warning", Reason.COMMAND_REFUSED, "RefuseCommand", note)


def repack_asked(obj: Object, pool: Pool) -> str:
    """The token of a repack that was asked for and is not done."""
    return token(obj, names.ANNOTATION_REPACK, pool.last_repack.get("token"))


def compaction_asked(obj: Object, pool: Pool) -> str:
    """The token of a compaction that was asked for and is neither done nor under way."""
    return (
        "" if pool.compaction is not None else token(obj, names.ANNOTATION_COMPACT, pool.last_compaction.get("token"))
    )


def mode_asked(mode: CompactionMode) -> CompactionMode:
    """How a compaction is done that somebody asks for: sliding where none is configured, since it drops nothing."""
    return CompactionMode.MOVE if mode is CompactionMode.DISABLED else mode


def plan_compaction(mode: CompactionMode, links: Sequence[Link], *, asked: str = "") -> Compaction:
    """The compaction of these workers. With `preload` each reloads what it is assigned."""
    reload = {link.member.uid: _largest_first(link) for link in links} if mode is CompactionMode.PRELOAD else {}
    return Compaction(mode, links, reload, asked)


def start_compaction(world: World, budget: Object, pool: Pool, compaction: Compaction) -> None:
    """Begin a compaction in the background; the budget is reconciled again when it has ended."""
    pool.compaction = asyncio.create_task(_run(world, budget, pool, compaction), name="compaction")


async def _run(world: World, budget: Object, pool: Pool, compaction: Compaction) -> None:
    namespace, name = budget["metadata"]["namespace"], budget["metadata"]["name"]
    slots = asyncio.Semaphore(_PARALLEL)

    async def one(link: Link) -> pb.CompactMemoryResponse | str:
        async with slots:
            reload = compaction.reload.get(link.member.uid, ())
            try:
                answer = await link.compact(_MODES[compaction.mode], reload, seconds=LONGEST_CALL_SECONDS)
            except CallError as error:
                logger.warning("worker %s was not compacted: %s", link.member.name, error)
                world.metrics.compactions.labels(namespace, name, compaction.mode.value, "error").inc()
                return f"{link.member.name}: {error.message}"
            world.metrics.compactions.labels(namespace, name, compaction.mode.value, "ok").inc()
            world.metrics.compaction_seconds.labels(namespace, name).observe(answer.seconds_until_callable)
            return answer

    again = 0.0
    try:
        answers = await asyncio.gather(*(one(link) for link in compaction.links))
        done = [a for a in answers if not isinstance(a, str)]
        failed = [a for a in answers if isinstance(a, str)]
        pool.last_compaction = summary(compaction, done, failed, time=timestamp(world.now()))
        pool.figures_at = float("-inf")  # the figures before and after are what was asked for
        note = f"{len(done)} workers compacted ({compaction.mode.value})"
        note += _figures(pool.last_compaction) + "".join(f"; {text}" for text in failed[:3])
        world.events.post(budget, BUDGETS.kind, "Warning" if failed else "Normal", Reason.COMPACTED, "Compact", note)
    except Exception:
        again = _AGAIN_SECONDS
        if not compaction.token:
            pool.to_compact |= {link.member.name for link in compaction.links}
        logger.exception("the compaction of %s/%s came to nothing; once more in %.0f s", namespace, name, again)
    finally:
        pool.compaction = None
        world.enqueue(budget_key(namespace, name), again)


def summary(
    compaction: Compaction, done: Sequence[pb.CompactMemoryResponse], failed: Sequence[str], *, time: str
) -> dict[str, Any]:
    """status.lastCompaction: before and after are those of the worst worker of each moment."""
    found: dict[str, Any] = {
        "time": time,
        "mode": compaction.mode.value,
        "workers": len(done),
        "failedWorkers": len(failed),
    }
    if compaction.token:
        found["token"] = compaction.token
    if done:
        found |= {
            "largestFreeBefore": quantities.format_api(min(a.largest_free_before for a in done)),
            "largestFreeAfter": quantities.format_api(min(a.largest_free_after for a in done)),
            "fragmentationPercentBefore": round(100 * max(a.fragmentation_before for a in done)),
            "fragmentationPercentAfter": round(100 * max(a.fragmentation_after for a in done)),
            "moved": quantities.format_api(sum(a.moved_bytes for a in done)),
            "reloadedModels": sum(len(a.reloaded) for a in done),
            "millisecondsUntilMoved": round(1000 * max(a.seconds_until_moved for a in done)),
            "millisecondsUntilCallable": round(1000 * max(a.seconds_until_callable for a in done)),
        }
    left = [f"{v.name}: {v.failure.message}" for a in done for v in a.not_reloaded]
    if failed or left:
        found["message"] = "; ".join([*failed, *left])[:MAX_MESSAGE]
    return found


def _figures(found: Mapping[str, Any]) -> str:
    """Before and after, in words; nothing where no worker has compacted."""
    if "largestFreeBefore" not in found:
        return ""
    return (
        f": the largest free block was {found['largestFreeBefore']} and is {found['largestFreeAfter']}, fragmentation "
        f"{found['fragmentationPercentBefore']} % and {found['fragmentationPercentAfter']} %, {found['moved']} moved"
    )


def _asked(obj: Object, annotation: str) -> str:
    return str(obj["metadata"].get("annotations", {}).get(annotation, ""))


def _largest_first(link: Link) -> tuple[str, ...]:
    assigned = {model.name for model in link.desired.models} if link.desired is not None else set()
    known = [state for state in link.view.models.values() if state.name in assigned]
    known = [state for state in known if state.residency != pb.RESIDENCY_DEVICE]  # those never leave
    return tuple(state.name for state in sorted(known, key=lambda s: (-s.weights_bytes, s.name)))
