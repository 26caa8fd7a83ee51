# SPDX-License-Identifier: Apache-2.0
"""Log lines: one each, as text for a person or as JSON for a collector."""

from __future__ import annotations

import datetime as dt
import json
import logging
import sys
from typing import Final, Literal

_QUIET: Final = ("kopf", "aiohttp", "asyncio", "grpc", "kubernetes", "urllib3")


class JsonFormatter(logging.Formatter):
    """One JSON object for each record."""

    def format(self, record: logging.LogRecord) -> str:
        """The line of a record."""
        line = {
            "time": dt.datetime.fromtimestamp(record.created, dt.UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def configure(level: str, form: Literal["text", "json"] | str) -> None:  # noqa: PYI051 - argparse gives a str
    """Write logs to standard error. kopf logs whole objects at lower levels, so it only warns."""
    handler = logging.StreamHandler(sys.stderr)
    text = logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s")
    handler.setFormatter(JsonFormatter() if form == "json" else text)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    for name in _QUIET:
        logging.getLogger(name).setLevel(logging.WARNING)
