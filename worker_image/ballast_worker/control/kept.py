# SPDX-License-Identifier: Apache-2.0
"""Small JSON files of the state directory as they are found at the start, whatever has become of them meanwhile."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path
from typing import Any


def read_json(path: Path) -> Any:
    """What a file holds.

    Raises:
        OSError: it is missing, cannot be read, or is no regular file.
        ValueError: it is not JSON.
    """
    # Not blocking: opening a named pipe would wait for a writer.
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise OSError(f"{path} is no regular file")
        try:
            return json.loads(file.read())
        except RecursionError as error:
            raise ValueError(f"{path} is nested too deep") from error
