# SPDX-License-Identifier: Apache-2.0
"""When models are assigned anew and when memory is compacted after it."""

from __future__ import annotations

import pytest

from ballast_operator.placement.cadence import compaction_due, repack_due


def test_compaction_follows_every_second_repack_and_waits_for_one_that_changed_a_worker():
    count, fired = 0, []
    for changed in (True, True, False, False, True):
        count, fire = compaction_due(count, enabled=True, every=2, changed=changed)
        fired.append((count, fire))
    assert fired == [(1, False), (0, True), (1, False), (2, False), (0, True)]


def test_disabled_compaction_counts_nothing():
    assert compaction_due(0, enabled=False, every=1, changed=True) == (0, False)


@pytest.mark.parametrize(
    ("spent", "first_done", "due"),
    [(59.9, False, False), (60.0, False, True), (60.0, True, False), (300.0, True, True)],
)
def test_the_first_repack_comes_early(spent, first_done, due):
    assert repack_due(spent, first_done=first_done, first_after=60, every=300) is due


def test_without_an_early_repack_the_first_comes_as_the_others_do():
    assert not repack_due(299.0, first_done=False, first_after=0, every=300)
    assert repack_due(300.0, first_done=False, first_after=0, every=300)
