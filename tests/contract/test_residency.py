# SPDX-License-Identifier: Apache-2.0
"""What is wanted of weights, as it travels."""

from __future__ import annotations

from ballast_contract.config import ResidencyWish
from ballast_contract.residency import RESIDENCIES, WISHES
from ballast_contract.v1 import control_pb2 as pb


def test_every_wish_travels_and_arrives_as_it_was_sent():
    assert [WISHES[RESIDENCIES[wish]] for wish in ResidencyWish] == list(ResidencyWish)
    assert set(WISHES) == set(pb.Residency.values()) - {pb.RESIDENCY_UNSPECIFIED}
