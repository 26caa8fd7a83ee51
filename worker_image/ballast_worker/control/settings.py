# SPDX-License-Identifier: Apache-2.0
"""Errors of the system in the words of the setting that they come of."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator


class SettingError(OSError):
    """What a setting names cannot be had; the message says setting, value and why."""


@contextlib.contextmanager
def named(setting: str, value: object) -> Iterator[None]:
    """Have whatever the system refuses in a block said of a setting and its value.

    Raises:
        SettingError: the system has refused something.
    """
    try:
        yield
    except SettingError:
        raise
    except OSError as error:
        where = f" ({error.filename})" if error.filename else ""
        raise SettingError(f"{setting} '{value}' cannot be used: {error.strerror or error}{where}") from error
