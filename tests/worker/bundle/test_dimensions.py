# SPDX-License-Identifier: Apache-2.0
"""Symbolic dimensions and the expressions over them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import export

from ballast_worker.bundle.dimensions import concrete_shape, evaluate, names_in, program_grid, program_name, value_of


def test_expressions_are_evaluated_as_jax_prints_them():
    batch, sequence = export.symbolic_shape("batch, sequence")
    values = {"batch": 5, "sequence": 77}
    for expression in (
        batch, 2 * batch + 1, (sequence - 3) // 2 + 1, sequence % 4, batch * sequence * 3, batch**2, -batch + 64, -2 * sequence + 200,
    ):  # fmt: skip
        expected = eval(str(expression).replace("^", "**"), {"floordiv": int.__floordiv__, "mod": int.__mod__}, values)
        assert evaluate(str(expression), values) == expected


@given(st.integers(1, 100), st.integers(1, 100), st.integers(1, 9))
def test_division_rounds_down_like_jax(batch, sequence, divisor):
    values = {"batch": batch, "sequence": sequence}
    assert value_of(f"floordiv(batch - sequence, {divisor})", values) == (batch - sequence) // divisor
    assert value_of(f"mod(batch - sequence, {divisor})", values) == (batch - sequence) % divisor


@pytest.mark.parametrize(
    "expression",
    [
        "__import__('os')", "batch.real", "batch[0]", "lambda: 1", "batch if batch else 1", "1.5", "True", "'a'", "max(batch)",
        "batch ** 2", "max(1, key=batch)", "(batch for batch in x)", "", "(", "batch batch", " batch", "mod", "batch\n", "batch^99",
        "unknown(batch)", "0x10 @ 2", "a" * 300, "(" * 200 + "1" + ")" * 200, "f(x)(y)", "batch := 3",
    ],
)  # fmt: skip
def test_anything_but_arithmetic_is_refused(expression):
    with pytest.raises(ValueError):
        names_in(expression)


@pytest.mark.parametrize(
    "expression", ["floordiv(100, s - 1)", "100//(s-1)", "mod(s, s - 1)", "s % (s - s)", "floordiv(1, 0)"]
)
def test_names_are_known_whatever_an_expression_divides_by(expression):
    assert names_in(expression) == ({"s"} if "s" in expression else set())


@pytest.mark.parametrize("expression", ["floordiv(1, 0)", "mod(s, 0)", "s // (s - 3)"])
def test_a_division_by_zero_names_the_expression_and_the_sizes(expression):
    with pytest.raises(ValueError, match=r"divides by zero for \{'s': 3\}") as caught:
        evaluate(expression, {"s": 3})
    assert expression in str(caught.value)


def test_results_that_are_no_sizes_are_refused():
    with pytest.raises(ValueError, match="sizes lie between 0"):
        evaluate("batch - 2", {"batch": 1})
    with pytest.raises(ValueError, match="64 bits"):
        evaluate("batch*batch*batch", {"batch": 2**31 - 1})
    with pytest.raises(ValueError, match="divides by zero"):
        evaluate("floordiv(8, batch)", {"batch": 0})
    with pytest.raises(ValueError, match="has no value"):
        evaluate("batch + width", {"batch": 1})


def test_programs_have_names_and_concrete_shapes():
    programs = program_grid(batch=[1, 4], sequence=[32])
    assert programs == [{"batch": 1, "sequence": 32}, {"batch": 4, "sequence": 32}]
    assert program_name(programs[1]) == "batch=4,sequence=32"
    assert program_name({}) == "static"
    assert concrete_shape(("batch", 7, "2*sequence + 1"), programs[1]) == (4, 7, 65)
