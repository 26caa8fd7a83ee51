# SPDX-License-Identifier: Apache-2.0
"""Model stores that only one node can mount."""

from __future__ import annotations

import datetime as dt

import pytest
from helpers.reconcile_objects import Builder

from ballast_contract.reasons import Reason
from ballast_operator.reconcile.pods import Trouble
from ballast_operator.reconcile.stores import judge, suspects

LATER = dt.datetime(2026, 1, 1, 0, 1, tzinfo=dt.UTC)
SOON = dt.datetime(2026, 1, 1, 0, 0, 10, tzinfo=dt.UTC)


def test_a_pod_that_waits_long_on_another_node_is_suspect(build: Builder):
    waiting = build.pod("b", pending=True, ready=False)
    assert suspects([build.pod("a"), waiting], now=LATER)
    assert not suspects([build.pod("a"), waiting], now=SOON)
    assert not suspects([waiting], now=LATER)
    assert not suspects([build.pod("a"), build.pod("b", pending=True, ready=False, node="node-a")], now=LATER)


def test_a_pod_that_cannot_be_scheduled_is_suspect_and_one_with_another_trouble_is_not(build: Builder):
    stuck = build.pod("b", pending=True, ready=False, node="", trouble=Trouble(Reason.UNSCHEDULABLE, "x"))
    assert suspects([build.pod("a"), stuck], now=LATER)
    other = build.pod("b", pending=True, ready=False, trouble=Trouble(Reason.IMAGE_PULL_FAILED, "x"))
    assert not suspects([build.pod("a"), other], now=LATER)


@pytest.mark.parametrize(
    ("modes", "shared"),
    [
        (["ReadWriteOnce"], False),
        (["ReadWriteOncePod"], False),
        (["ReadOnlyMany"], True),
        (["ReadWriteOnce", "ReadWriteMany"], True),
        ([], False),
    ],
)
def test_access_modes_decide(modes, shared):
    found = judge({"metadata": {"name": "models"}, "spec": {"accessModes": modes}})
    assert (found is None) is shared
    if found is not None:
        assert found.reason is Reason.MODEL_STORE_NOT_SHARED
        assert "use a claim with ReadOnlyMany or ReadWriteMany" in found.message
