# SPDX-License-Identifier: Apache-2.0
"""Which model is asked for when: reference strings of published shapes, the same for the same seed.

A trace says nothing of how models are served. Sizes are another matter: see `catalogue`.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

MIB: Final = 1 << 20


class Reference(NamedTuple):
    """One request: seconds since the trace began, and which model by its number."""

    seconds: float
    model: int


Trace = Sequence[Reference]
"""In order of time."""


def catalogue(seed: int, models: int, *, smallest: int = 64 * MIB, largest: int = 16 << 30) -> list[int]:
    """Bytes of each model, multiples of 256: as many between 64 and 128 MiB as between 8 and 16 GiB."""
    chosen = random.Random(f"catalogue {seed}")
    return [int(smallest * (largest / smallest) ** chosen.random()) // 256 * 256 for _ in range(models)]


def zipf(seed: int, *, models: int, requests: int, per_second: float = 10.0, exponent: float = 0.8) -> Trace:
    """Independent requests, the i-th most popular model in proportion to i ** -exponent, at Poisson times.

    Breslau, Cao, Fan, Phillips and Shenker, Web Caching and Zipf-like Distributions, INFOCOM 1999: requests that come
    through proxies follow this law with exponents of 0.64 to 0.83.
    """
    chosen = random.Random(f"zipf {seed}")
    order = chosen.sample(range(models), models)
    weights = list(accumulate(_zipf_weights(models, exponent)))
    clock = _poisson(chosen, per_second)
    return [Reference(next(clock), _pick(chosen, order, weights)) for _ in range(requests)]


def bursty_groups(seed: int, *, models: int, requests: int, per_second: float = 10.0, variation: float = 4.0) -> Trace:
    """Groups of one to eight models that are asked for together, in bursts.

    The shape of serverless functions: they come in applications, few applications have most of the invocations, and the
    times between invocations vary more than those of a Poisson process (Shahrad et al., Serverless in the Wild, USENIX
    ATC 2020). Requests to a group come as a Gamma process with this coefficient of variation, as AlpaServe replays such
    traces to models (Li et al., OSDI 2023), each for a random member; the i-th group in proportion to 1 / i.
    """
    chosen = random.Random(f"bursty groups {seed}")
    members = chosen.sample(range(models), models)
    groups = []
    while members:
        size = min(len(members), chosen.randint(1, 8))
        groups.append([members.pop() for _ in range(size)])
    weights = _zipf_weights(len(groups), 1.0)
    shape = 1 / variation**2
    references: list[Reference] = []
    for group, weight in zip(groups, weights, strict=True):
        mean = sum(weights) / weight / per_second
        now = -mean * chosen.random()  # the first gap has begun before the trace
        while now < 2 * requests / per_second:
            now += chosen.gammavariate(shape, mean / shape)
            references.append(Reference(now, chosen.choice(group)))
    return sorted(reference for reference in references if reference.seconds >= 0)[:requests]


def scan_over_hot_set(
    seed: int, *, models: int, requests: int, per_second: float = 10.0, hot: float = 0.2, scanned: float = 0.25
) -> Trace:
    """Requests for a few hot models, and among them a job that asks for every other model in turn, again and again.

    The references that O'Neil, O'Neil and Weikum, The LRU-K Page Replacement Algorithm, SIGMOD 1993, give as the reason
    not to evict by recency alone: a scan drives out what is used all the time.

    Args:
        seed: of the trace.
        models: how many there are.
        requests: how many are made.
        per_second: how often.
        hot: share of the models that are hot, all of them alike.
        scanned: share of the requests that the scan makes.
    """
    chosen = random.Random(f"scan over hot set {seed}")
    order = chosen.sample(range(models), models)
    warm, cold = order[: int(hot * models)], order[int(hot * models) :]
    clock = _poisson(chosen, per_second)
    at = 0
    references = []
    for _ in range(requests):
        if chosen.random() < scanned:
            references.append(Reference(next(clock), cold[at % len(cold)]))
            at += 1
        else:
            references.append(Reference(next(clock), chosen.choice(warm)))
    return references


def shifting_zipf(
    seed: int,
    *,
    models: int,
    requests: int,
    per_second: float = 10.0,
    exponent: float = 0.8,
    phase_seconds: float = 600.0,
) -> Trace:
    """The same law as `zipf` whose popular models are others every ten minutes.

    What was popular once must not stay for it: the failure of eviction by frequency alone that ageing is for (Arlitt et
    al., Evaluating Content Management Techniques for Web Proxy Caches, 1999).
    """
    chosen = random.Random(f"shifting zipf {seed}")
    weights = list(accumulate(_zipf_weights(models, exponent)))
    clock = _poisson(chosen, per_second)
    order: list[int] = []
    phase = -1
    references = []
    for _ in range(requests):
        now = next(clock)
        if now // phase_seconds != phase:
            phase = int(now // phase_seconds)
            order = chosen.sample(range(models), models)
        references.append(Reference(now, _pick(chosen, order, weights)))
    return references


SHAPES: Final[dict[str, Callable[..., Trace]]] = {
    "zipf": zipf,
    "bursty groups": bursty_groups,
    "scan over a hot set": scan_over_hot_set,
    "shifting zipf": shifting_zipf,
}
"""Every shape, by the name that reports use. All take a seed, and `models`, `requests` and `per_second` by name."""


def _zipf_weights(count: int, exponent: float) -> list[float]:
    return [(rank + 1) ** -exponent for rank in range(count)]


def _pick(chosen: random.Random, order: Sequence[int], cumulative: Sequence[float]) -> int:
    return chosen.choices(order, cum_weights=cumulative)[0]


def _poisson(chosen: random.Random, per_second: float) -> Iterator[float]:
    now = 0.0
    while True:
        now += chosen.expovariate(per_second)
        yield now
