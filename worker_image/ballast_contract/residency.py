# SPDX-License-Identifier: Apache-2.0
"""What is wanted of a model's weights: as objects and files spell it, and as the control channel carries it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from ballast_contract.config import ResidencyWish
from ballast_contract.v1 import control_pb2 as pb

RESIDENCIES: Final[Mapping[ResidencyWish, pb.Residency]] = MappingProxyType(
    {
        ResidencyWish.UNPINNED: pb.RESIDENCY_UNPINNED,
        ResidencyWish.SYSTEM: pb.RESIDENCY_SYSTEM,
        ResidencyWish.DEVICE: pb.RESIDENCY_DEVICE,
    }
)

WISHES: Final[Mapping[int, ResidencyWish]] = MappingProxyType({number: wish for wish, number in RESIDENCIES.items()})
"""The other way round. What is not in it was not said, or is of another release."""
