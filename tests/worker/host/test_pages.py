# SPDX-License-Identifier: Apache-2.0
"""Which pages a region gets."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ballast_worker.host.pages import PAGE_BYTES, Run, free_runs, pages_for, take


def test_a_region_takes_whole_pages():
    assert [pages_for(n) for n in (0, 1, PAGE_BYTES, PAGE_BYTES + 1)] == [0, 1, 1, 2]


def test_everything_is_free_in_empty_segments():
    assert free_runs([7, 3], 4, []) == [Run(3, 0, 4), Run(7, 0, 4)]


def test_what_lies_between_runs_is_free():
    assert free_runs([1], 8, [Run(1, 5, 1), Run(1, 1, 2)]) == [Run(1, 0, 1), Run(1, 3, 2), Run(1, 6, 2)]


def test_the_shortest_run_that_holds_all_pages_is_taken():
    free = [Run(1, 0, 5), Run(1, 6, 3), Run(2, 0, 4)]
    assert take(free, 3) == (Run(1, 6, 3),)
    assert take(free, 4) == (Run(2, 0, 4),)


def test_without_one_run_the_longest_are_put_together():
    free = [Run(1, 0, 2), Run(1, 4, 3), Run(2, 0, 4)]
    assert take(free, 6) == (Run(2, 0, 4), Run(1, 4, 2))


def test_pages_anywhere_are_enough_so_nothing_fragments():
    free = [Run(1, page, 1) for page in range(0, 16, 2)]
    assert len(take(free, 8)) == 8
    assert take(free, 9) is None


@given(data=st.data(), per_segment=st.integers(1, 16), segments=st.sets(st.integers(1, 6), min_size=1, max_size=4))
def test_runs_never_overlap_and_every_page_is_used_or_free(data, per_segment, segments):
    used = []
    for _ in range(data.draw(st.integers(0, 12))):
        runs = take(free_runs(segments, per_segment, used), data.draw(st.integers(1, 8)))
        used += runs or ()
        if used and data.draw(st.booleans()):
            used.pop(data.draw(st.integers(0, len(used) - 1)))
    pages = [(run.segment, page) for run in used for page in range(run.first, run.first + run.count)]
    free = [
        (run.segment, page)
        for run in free_runs(segments, per_segment, used)
        for page in range(run.first, run.first + run.count)
    ]
    assert sorted(pages + free) == [(segment, page) for segment in sorted(segments) for page in range(per_segment)]
