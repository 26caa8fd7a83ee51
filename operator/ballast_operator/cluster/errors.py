# SPDX-License-Identifier: Apache-2.0
"""What the API server can answer instead of an object, with its own words kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ApiError(Exception):
    """The API server refused a call, or could not be reached.

    `status` is the HTTP code (0: no answer), `reason` the server's word for it, `message` its sentence,
    `retry_after` the seconds it asks to wait, when it does, `causes` its words for the details.
    """

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        retry_after: float | None = None,
        call: str = "",
        causes: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(f"{call}: {message}" if call else message)
        self.message = message
        self.status = status
        self.reason = reason
        self.retry_after = retry_after
        self.causes = causes


class NotFound(ApiError):  # noqa: N818 - the API server's own words
    """Nothing of that name exists."""


class AlreadyExists(ApiError):  # noqa: N818
    """Something of that name exists."""


class Conflict(ApiError):  # noqa: N818
    """The object changed since it was read, or another manager owns a field, or the uid is another."""


class Gone(ApiError):  # noqa: N818
    """The version or the continue token is too old: list again."""


class Refused(ApiError):  # noqa: N818
    """The server says no, and would say it again until somebody changes something."""


class Invalid(Refused):
    """The object breaks its schema or a validation rule."""


class Forbidden(Refused):
    """RBAC, a quota or an admission policy says no, or the namespace is being deleted."""

    @property
    def namespace_ending(self) -> bool:
        """Nothing new can be made in the namespace, because it is being deleted."""
        return "NamespaceTerminating" in self.causes


class Unauthorized(ApiError):  # noqa: N818
    """The credentials are missing, wrong or out of date."""


class Fenced(ApiError):  # noqa: N818
    """The write was not sent: another process may lead by now."""


class Unavailable(ApiError):  # noqa: N818
    """No answer, too many requests, or an error of the server: trying again later may help."""


def from_answer(status: int, body: Mapping[str, Any], *, retry_after: float | None = None, call: str = "") -> ApiError:
    """The error that a Status body of the API server stands for."""
    reason = str(body.get("reason") or "")
    message = str(body.get("message") or body.get("raw") or f"HTTP {status}")
    kind = _BY_STATUS.get(status, Unavailable if status >= 500 else Refused)
    if status == 409 and reason == "AlreadyExists":
        kind = AlreadyExists
    details = body.get("details") or {}
    causes = frozenset(str(cause.get("reason", "")) for cause in details.get("causes") or ())
    return kind(message, status=status, reason=reason, retry_after=retry_after, call=call, causes=causes)


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    408: Unavailable,
    409: Conflict,
    410: Gone,
    422: Invalid,
    425: Unavailable,
    429: Unavailable,
}
