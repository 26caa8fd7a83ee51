# SPDX-License-Identifier: Apache-2.0
"""Sizes as the API spells them, alone or beside the words that some fields take: one spelling, and one largest size."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Annotated, Any, Final

import pydantic
from pydantic_core import CoreSchema, core_schema

from ballast_contract import quantities
from ballast_operator.api.common import Rule, Spelling

_WORDS: Final = "a size: write digits and Ki, Mi, Gi or Ti, as in 1536Mi or 60Gi"
_SIZE: Final = quantities.API_PATTERN.strip("^$")
_PERCENT: Final = quantities.PERCENT_PATTERN.strip("^$")
_MOST: Final = quantities.format_api(quantities.MAX_SIZE)


@dataclass(frozen=True, slots=True)
class _Bounded:
    """At most the largest size that a worker takes, checked alike by the model and by the schema; words are passed over."""

    def __get_pydantic_core_schema__(self, source: Any, handler: pydantic.GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, core: CoreSchema, handler: pydantic.GetJsonSchemaHandler) -> dict[str, Any]:
        rule = Rule(
            f"!string(self).matches(r'{quantities.API_PATTERN}') || "
            f"quantity(string(self)).compareTo(quantity('{_MOST}')) <= 0",
            f"must be at most {_MOST}",
            f'"\'" + string(self) + "\' is too large: the most is {_MOST}"',
        )
        return rule.__get_pydantic_json_schema__(core, handler)

    @staticmethod
    def _check(value: str) -> str:
        if re.fullmatch(quantities.API_PATTERN, value) and quantities.parse_api(value) > quantities.MAX_SIZE:
            raise ValueError(f"'{value}' is too large: the most is {_MOST}")
        return value


_Text = Annotated[str, pydantic.Field(min_length=1, max_length=16)]

Size = Annotated[_Text, Spelling(quantities.API_PATTERN, _WORDS, integers=True), _Bounded()]
"""A size as the API spells it; `quantities.parse_api` reads it."""

SizeOrPercent = Annotated[
    _Text,
    Spelling(f"^({_SIZE}|{_PERCENT})$", f"{_WORDS}, or a whole percentage, as in 90%", integers=True),
    _Bounded(),
]

SizeOrAuto = Annotated[_Text, Spelling(f"^({_SIZE}|auto)$", f"{_WORDS}, or auto", integers=True), _Bounded()]

SizeAutoOrUnlimited = Annotated[
    _Text,
    Spelling(f"^({_SIZE}|auto|unlimited)$", f"{_WORDS}, or auto, or unlimited", integers=True),
    _Bounded(),
]
