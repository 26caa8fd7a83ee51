# SPDX-License-Identifier: Apache-2.0
"""Logs: JSON lines for machines, short lines for people who sit at a terminal."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any, Final, TextIO

from ballast_contract.config import LogLevel

_STANDARD: Final = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}


class JsonFormatter(logging.Formatter):
    """One JSON object per record; what was given as `extra` becomes fields of it, but for `table`, which is for people."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as one line."""
        fields: dict[str, Any] = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created)) + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        fields |= {name: value for name, value in vars(record).items() if name not in _STANDARD and name != "table"}
        if record.exc_info:
            fields["exception"] = self.formatException(record.exc_info)
        return json.dumps(fields, default=str)


class HumanFormatter(logging.Formatter):
    """Time, level where it matters, and the message."""

    def format(self, record: logging.LogRecord) -> str:
        """The record as people read it."""
        level = "" if record.levelno <= logging.INFO else f"{record.levelname.lower()}: "
        text = f"{time.strftime('%H:%M:%S', time.localtime(record.created))} {level}{record.getMessage()}"
        if table := vars(record).get("table"):
            text += f"\n{table}"
        return f"{text}\n{self.formatException(record.exc_info)}" if record.exc_info else text


def configure(stream: TextIO = sys.stderr, *, level: LogLevel = LogLevel.INFO) -> None:
    """Send all logs of this process to a stream, in the form that suits it. Of libraries, what is worth a warning."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(HumanFormatter() if stream.isatty() else JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.WARNING)
    logging.getLogger("ballast_worker").setLevel(level.upper())
