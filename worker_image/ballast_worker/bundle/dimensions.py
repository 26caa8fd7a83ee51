# SPDX-License-Identifier: Apache-2.0
"""Symbolic dimensions: their names, expressions over them, and the concrete shape that a program gives them.

An expression is spelled as JAX prints it (`2*batch`, `floordiv(sequence - 3, 2) + 1`) and is read by a small evaluator
with an allow-list, so that output shapes and bytes are known without JAX.
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Callable, Iterable, Mapping

MAX_EXPRESSION = 256
"""Characters of one expression."""

MAX_SIZE = 2**31 - 1
"""Elements of one axis: what XLA's 32-bit dimension arithmetic can express."""

NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
"""How a dimension is called: a name that JAX's symbolic shapes accept too."""

RESERVED = frozenset({"mod", "floordiv", "max", "min", "non_negative"})
"""Functions of expressions; no dimension may have such a name."""

_BINARY: Mapping[type[ast.operator], Callable[[int, int], int]] = {
    ast.Add: int.__add__,
    ast.Sub: int.__sub__,
    ast.Mult: int.__mul__,
    ast.FloorDiv: int.__floordiv__,
    ast.Mod: int.__mod__,
}
_FUNCTIONS: Mapping[str, tuple[int, Callable[..., int]]] = {
    "floordiv": (2, int.__floordiv__),
    "mod": (2, int.__mod__),
    "max": (2, max),
    "min": (2, min),
    "non_negative": (1, lambda value: max(value, 0)),
}

_Compute = Callable[[Mapping[str, int]], int]


def names_in(expression: str) -> frozenset[str]:
    """Names of the dimensions that an expression uses.

    Raises:
        ValueError: The expression uses anything but integers, names, `+ - * // ^`, parentheses and the functions
            `floordiv`, `mod`, `max`, `min`, `non_negative`, or is longer than `MAX_EXPRESSION`.
    """
    found: set[str] = set()
    _compile(_parse(expression), expression, found)
    return frozenset(found)


def evaluate(expression: str, values: Mapping[str, int]) -> int:
    """The size of an axis when every dimension has the given value.

    Raises:
        ValueError: As for `value_of`; or the result is not a size: outside 0..`MAX_SIZE`.
    """
    result = value_of(expression, values)
    if not 0 <= result <= MAX_SIZE:
        raise ValueError(f"{expression!r} is {result} for {dict(values)}; sizes lie between 0 and {MAX_SIZE}")
    return result


def value_of(expression: str, values: Mapping[str, int]) -> int:
    """The value of an expression when every dimension has the given value, whether it is a size or not.

    Raises:
        ValueError: As for `names_in`; or a dimension has no value, a division by zero, or more than 64 bits.
    """
    used: set[str] = set()
    compute = _compile(_parse(expression), expression, used)
    if missing := sorted(used - values.keys()):
        raise ValueError(
            f"dimension {missing[0]!r} in {expression!r} has no value; known are {', '.join(values) or 'none'}"
        )
    try:
        return compute(values)
    except ZeroDivisionError as error:
        raise ValueError(f"{expression!r} divides by zero for {dict(values)}") from error


def concrete_shape(shape: Iterable[int | str], program: Mapping[str, int]) -> tuple[int, ...]:
    """The shape for one program: names and expressions replaced by their values.

    Raises:
        ValueError: As for `evaluate`.
    """
    return tuple(axis if isinstance(axis, int) else evaluate(axis, program) for axis in shape)


def program_name(program: Mapping[str, int]) -> str:
    """The spelling of a program in logs, metrics and file names, as in `batch=4,sequence=128`; `static` without dimensions."""
    return ",".join(f"{name}={value}" for name, value in program.items()) or "static"


def program_grid(**sizes: Iterable[int]) -> list[dict[str, int]]:
    """Every combination of the given sizes: `program_grid(batch=[1, 4], sequence=[32, 128])` makes four programs."""
    return [dict(zip(sizes, values, strict=True)) for values in itertools.product(*sizes.values())]


def _parse(expression: str) -> ast.expr:
    if len(expression) > MAX_EXPRESSION:
        raise ValueError(f"expression of {len(expression)} characters; at most {MAX_EXPRESSION} are read")
    if expression != expression.strip():
        raise ValueError(f"{expression!r} has spaces around it")
    try:
        return ast.parse(expression, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ValueError(f"{expression!r} is not a dimension or an expression over dimensions") from error


def _compile(node: ast.expr, expression: str, names: set[str]) -> _Compute:
    """What computes a part of an expression; adds the names of the dimensions that it uses. Computes nothing itself: a
    division by zero is one for some sizes only.
    """
    match node:
        case ast.Constant(value=int() as value) if not isinstance(value, bool):
            return lambda _: value
        case ast.Name(id=name) if NAME.match(name) and name not in RESERVED:
            names.add(name)
            return lambda values: values[name]
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            positive = _compile(operand, expression, names)
            return lambda values: -positive(values)
        case ast.BinOp(left=left, op=ast.BitXor(), right=ast.Constant(value=int() as power)) if 0 <= power <= 8:
            base = _compile(left, expression, names)
            return lambda values: _bounded(int(base(values) ** power), expression)  # JAX prints powers as n^2
        case ast.BinOp(left=left, op=op, right=right) if type(op) in _BINARY:
            compute = _BINARY[type(op)]
            first, second = _compile(left, expression, names), _compile(right, expression, names)
            return lambda values: _bounded(compute(first(values), second(values)), expression)
        case ast.Call(func=ast.Name(id=name), args=args, keywords=[]) if name in _FUNCTIONS:
            arity, function = _FUNCTIONS[name]
            operands = [_compile(arg, expression, names) for arg in args]
            if len(operands) == arity:
                return lambda values: function(*(operand(values) for operand in operands))
    raise ValueError(
        f"{expression!r} is not an expression over dimensions: integers, names, + - * // ^, parentheses and "
        f"{', '.join(sorted(RESERVED))} are"
    )


def _bounded(value: int, expression: str) -> int:
    # Keeps products of large integers from growing without limit.
    if abs(value) > 2**63:
        raise ValueError(f"{expression!r} exceeds 64 bits")
    return value
