# SPDX-License-Identifier: Apache-2.0
"""Looking at pools from outside."""

from __future__ import annotations

import pytest

from ballast_worker.host.errors import HostPoolError
from ballast_worker.host.survey import survey

MIB = 1 << 20


def test_a_survey_has_every_region_the_last_loaded_first_and_changes_nothing(pool, bundle, read):
    store = pool(budget=16, segment=8)
    a, b = bundle("a", 3), bundle("b", 1)
    read(store.acquire(a, keep=True))
    held = store.acquire(b, keep=False)
    found = survey(store._path)
    assert (found.segments, found.segment_bytes, found.used_bytes) == (2, 8 * MIB, 6 * MIB)
    assert [region.name for region in found.regions] == ["b", "a"]
    assert [region.in_transfer for region in found.regions] == [True, False]
    assert [region.kept for region in found.regions] == [False, True]
    assert found.regions[1].digest == a.manifest.weights.digest
    assert (found.regions[1].nbytes, found.regions[1].host_bytes, found.regions[1].ready) == (3 * MIB, 4 * MIB, True)
    held.close()
    assert survey(store._path).regions[0].in_transfer is False


def test_there_is_no_pool_in_an_empty_or_missing_directory(tmp_path):
    with pytest.raises(HostPoolError, match="no host pool"):
        survey(tmp_path)
    with pytest.raises(HostPoolError, match="no host pool"):
        survey(tmp_path / "missing")
