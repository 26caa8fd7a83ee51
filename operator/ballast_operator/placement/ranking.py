# SPDX-License-Identifier: Apache-2.0
"""What an assignment is judged by."""

from __future__ import annotations

import math

from ballast_operator.placement.board import Board
from ballast_operator.placement.load import size

Rank = tuple[int, int, float]
"""Copies left out, crowded workers, peak; less is better."""


def rank(board: Board) -> Rank:
    """The rank of what is on a board."""
    return left_out(board), crowded(board), board.peak


def left_out(board: Board) -> int:
    """Copies without a worker that an empty one could take."""
    largest = max((math.inf if load.capacity is None else load.capacity for load in board.loads), default=0)
    return sum(board.lacking(model) for model in board.models.values() if size(model) <= largest)


def crowded(board: Board) -> int:
    """Crowded workers of a pool whose models might all fit."""
    return sum(load.crowded for load in board.loads) if board.mean_memory <= 1 else 0
