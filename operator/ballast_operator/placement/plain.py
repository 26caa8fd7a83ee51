# SPDX-License-Identifier: Apache-2.0
"""The plain rule, longest processing time first: what no pack may be worse than.

R. L. Graham, Bounds on multiprocessing timing anomalies, SIAM J. Appl. Math. 17, 1969.
"""

from __future__ import annotations

from collections.abc import Sequence

from ballast_operator.placement.board import Board
from ballast_operator.placement.model import ModelDemand, WorkerCapacity, by_demand


def plain(
    models: Sequence[ModelDemand], workers: Sequence[WorkerCapacity], *, everywhere: bool
) -> dict[str, tuple[str, ...]]:
    """Workers by model, where each in turn goes to the worker that is lowest with it in max(compute, memory).

    Workers where it would be on the device with everything else come first. Who served or holds what counts for nothing.
    """
    bare = [WorkerCapacity(worker.name, capacity_bytes=worker.capacity_bytes) for worker in workers]
    board = Board(models, bare, {}, everywhere=everywhere, plain=True)
    for model in sorted(models, key=by_demand):
        for _ in range(board.lacking(model)):
            load = board.choose(model, tolerance=1.0, whole=True) or board.choose(model, tolerance=1.0, whole=False)
            if load is None:
                break
            board.put(model, load, board.share(model))
    return board.assignments()
