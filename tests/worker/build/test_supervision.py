# SPDX-License-Identifier: Apache-2.0
"""What a builder process has done, by what it said and how it ended. The process is a script in the builder's place."""

from __future__ import annotations

import signal

import pytest

from ballast_contract.reasons import Reason
from ballast_worker.build.supervision import Supervised


@pytest.fixture
def outcome(monkeypatch, tmp_path):
    """Follows a script that does the rest of its request."""

    def follow(rest: str, *, timeout_seconds: float = 60.0):
        script = tmp_path / "builder"
        script.write_text(f"#!/bin/sh\ncat > {tmp_path}/request\n{rest}\n")
        script.chmod(0o755)
        monkeypatch.setattr("sys.executable", str(script))
        builder = Supervised("m", timeout_seconds, lambda _: None)
        builder.start()
        return builder.follow({"programs": []}, lambda _: None)

    return follow


def test_what_is_built_is_built_however_the_process_ends_afterwards(outcome):
    found = outcome("""echo '{"event": "built"}'; echo '{"event": "finished"}'; kill -SEGV $$""")
    assert found.failure is None
    assert found.built == 1


def test_a_process_that_ends_before_it_has_finished_is_a_crash(outcome):
    found = outcome("""echo '{"event": "built"}'; echo last words >&2; kill -SEGV $$""")
    assert found.failure.reason is Reason.LOAD_FAILED_PERMANENT
    assert found.failure.exit_code == -signal.SIGSEGV
    assert "the builder of m was killed by SIGSEGV; its last words: last words" in found.failure.message


def test_what_the_process_says_is_why_it_failed(outcome):
    found = outcome("""echo '{"event": "failed", "reason": "BundleInvalid", "message": "no"}'; exit 1""")
    assert (found.failure.reason, found.failure.message) == (Reason.BUNDLE_INVALID, "no")
