# SPDX-License-Identifier: Apache-2.0
"""What counts as an untrue status: called Ready for longer than the limit after the last right answer."""

from __future__ import annotations

import pytest
from helpers.truth import Said, untrue

from e2e.load.calls import Target
from e2e.load.client import Sample, Stream

M = Stream(Target("10.0.0.1", "m"), "http", 2.0)


def answered(*times: float) -> list[Sample]:
    return [Sample(M, "p", time, time) for time in times]


@pytest.mark.parametrize(
    ("said", "samples", "expected"),
    [
        (Said("m", "True", 0, 30), answered(5, 10, 15, 20, 25, 30), []),
        (Said("m", "True", 0, 30), answered(5, 10), [("m", 20, 10)]),
        (Said("m", "True", 0, 30), answered(5, 28), [("m", 15, 13)]),
        (Said("m", "False", 0, 30), answered(1), []),
        (Said("m", "", 0, 30), answered(1), []),
        (Said("m", "True", 0, 30), [Sample(M, "p", 1, 1, "503")], [("m", 10, 20)]),
        (Said("m", "True", 20, 29), answered(1), []),
        (Said("other", "True", 0, 30), answered(1), []),
    ],
    ids=[
        "answered throughout",
        "not answered at the end",
        "not answered in the middle",
        "not called ready",
        "nothing could be read",
        "failures are no answers",
        "not ready for longer than the limit",
        "nobody called it",
    ],
)
def test_a_status_may_be_wrong_for_the_limit_after_the_last_right_answer(said, samples, expected):
    assert untrue([said], samples, limit=10) == expected
