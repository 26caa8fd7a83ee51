# SPDX-License-Identifier: Apache-2.0
"""Which program runs which calls together."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from ballast_worker.build.builder import BuiltProgram
from ballast_worker.serving.programs import ProgramTable


def program(seconds: float = 0.001, **dimensions: int) -> BuiltProgram:
    return BuiltProgram(tuple(sorted(dimensions.items())), Path("x"), "sha256:0", 0, 0, 0, seconds)


def table(*sizes: int, max_rows: int = 0, seconds: float = 0.001) -> ProgramTable:
    return ProgramTable([program(seconds, batch=size) for size in sizes], "batch", max_rows)


def choose(programs: ProgramTable, waiting: list[int]) -> tuple[int, int]:
    bucket = programs.bucket({"batch": waiting[0]})
    assert bucket is not None
    chosen, count = programs.choose(bucket, waiting)
    return chosen.rows, count


def test_where_a_larger_batch_costs_the_same_everyone_goes_along():
    assert choose(table(1, 4, 8), [2, 2, 2]) == (8, 3)
    assert choose(table(1, 4, 8), [1]) == (1, 1), "padding that serves nobody is avoided"
    assert choose(table(4, 8), [1]) == (4, 1)
    assert choose(table(1, 4, 8), [6, 1, 1]) == (8, 3)


def test_where_a_larger_batch_costs_in_proportion_a_full_one_goes_first():
    programs = ProgramTable([program(0.001 * size, batch=size) for size in (1, 4, 8)], "batch", 0)
    assert choose(programs, [2, 2, 2]) == (4, 2)
    assert choose(programs, [1, 1, 1, 1, 1, 1, 1, 1, 1]) == (8, 8)


def test_the_cap_of_the_spec_bounds_what_is_put_together_but_not_one_call():
    assert choose(table(1, 4, 8, max_rows=4), [2, 2, 2, 2]) == (4, 2)
    assert choose(table(4, 8, max_rows=2), [1, 1, 1]) == (4, 2)
    assert choose(table(4, 8, max_rows=2), [6, 1]) == (8, 1)


def test_without_a_batch_dimension_every_call_runs_alone():
    programs = ProgramTable([program(length=16), program(length=64)], None, 0)
    bucket = programs.bucket({"length": 17})
    assert bucket is not None
    assert programs.choose(bucket, [1, 1, 1]) == (bucket.programs[0], 1)
    assert dict(bucket.programs[0].dimensions) == {"length": 64}


def test_a_call_goes_to_the_smallest_program_that_holds_its_other_dimensions_and_its_rows():
    programs = ProgramTable(
        [program(batch=32, length=128), program(batch=4, length=128), program(batch=1, length=2048)], "batch", 0
    )
    assert programs.bucket({"batch": 5, "length": 100}).others == {"length": 128}
    assert programs.bucket({"batch": 1, "length": 129}).others == {"length": 2048}
    assert programs.bucket({"batch": 2, "length": 129}) is None
    assert programs.bucket({"batch": 33, "length": 1}) is None


def test_a_program_that_once_looked_expensive_is_tried_again():
    programs = ProgramTable(
        [program(0.001, batch=1), program(9.0, batch=4), program(0.002, batch=8), program(9.0, batch=16)], "batch", 0
    )
    bucket = programs.bucket({"batch": 1})
    assert [p.seconds for p in bucket.programs] == [0.001, 0.002, 0.002, 0.004]
    assert choose(programs, [1] * 16) == (16, 16)
    for _ in range(60):
        bucket.learn(bucket.programs[3], 0.003)
    assert abs(bucket.programs[3].seconds - 0.003) < 1e-4


@given(
    sizes=st.lists(st.integers(1, 64), min_size=1, max_size=6, unique=True),
    seconds=st.lists(st.floats(1e-6, 10), min_size=6, max_size=6),
    cap=st.integers(0, 80),
    data=st.data(),
)
def test_what_is_chosen_holds_what_is_taken(sizes, seconds, cap, data):
    programs = ProgramTable(
        [program(cost, batch=size) for size, cost in zip(sizes, seconds, strict=False)], "batch", cap
    )
    waiting = data.draw(st.lists(st.integers(1, max(sizes)), min_size=1, max_size=40))
    bucket = programs.bucket({"batch": waiting[0]})
    assert bucket is not None
    chosen, count = programs.choose(bucket, iter(waiting))
    total = sum(waiting[:count])
    assert 1 <= count <= len(waiting)
    assert total <= chosen.rows
    assert count == 1 or total <= programs.limit(bucket)
    smaller = [p for p in bucket.programs if p.rows >= total and p.rows < chosen.rows]
    assert all(p.seconds >= chosen.seconds * 0.999 for p in smaller), "rows are padded only where that is free"
