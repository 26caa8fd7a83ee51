# SPDX-License-Identifier: Apache-2.0
"""The journal names what ran when a process died, and the quarantine keeps it from running again."""

from __future__ import annotations

import signal
import subprocess
import sys
from dataclasses import replace

import pytest

from ballast_worker.control.assignment import AssignedModel
from ballast_worker.control.journal import Culprit, CulpritJournal
from ballast_worker.control.quarantine import Quarantine

MODEL = AssignedModel(name="m", uri="file:///m")
PROGRAM = (("batch", 4),)


def test_a_process_killed_in_a_dispatch_leaves_its_culprit(tmp_path):
    script = (
        "import os, signal, sys\n"
        "from pathlib import Path\n"
        "from ballast_worker.control.journal import CulpritJournal\n"
        "journal = CulpritJournal(Path(sys.argv[1]))\n"
        "journal.begin('good', (('batch', 1),))\n"
        "journal.end('good', (('batch', 1),))\n"
        "journal.begin('bad', (('batch', 4),))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process = subprocess.run([sys.executable, "-c", script, tmp_path / "journal"], check=False)
    assert process.returncode == -signal.SIGKILL
    assert CulpritJournal(tmp_path / "journal").culprits == (Culprit("bad", "batch=4"),)


def test_an_orderly_end_blames_nobody(tmp_path):
    journal = CulpritJournal(tmp_path / "journal")
    journal.begin("m", PROGRAM)
    journal.close()
    assert CulpritJournal(tmp_path / "journal").culprits == ()


def test_executions_of_one_program_nest(tmp_path):
    journal = CulpritJournal(tmp_path / "journal")
    journal.begin("m", PROGRAM)
    journal.begin("m", PROGRAM)
    journal.end("m", PROGRAM)
    assert CulpritJournal(tmp_path / "journal").culprits == (Culprit("m", "batch=4"),)


def test_a_culprit_is_told_once(tmp_path):
    CulpritJournal(tmp_path / "journal").begin("m", PROGRAM)
    assert CulpritJournal(tmp_path / "journal").culprits
    assert CulpritJournal(tmp_path / "journal").culprits == ()


def test_long_names_and_many_slots_are_cut_and_never_raise(tmp_path):
    journal = CulpritJournal(tmp_path / "journal")
    for index in range(100):
        journal.begin("m" * 600 + str(index), ())
    for index in range(100):
        journal.end("m" * 600 + str(index), ())
    assert CulpritJournal(tmp_path / "journal").culprits == ()


@pytest.fixture
def died(tmp_path):
    """A worker that ran model m died at some second, and has started again."""

    def blamed(second, model=MODEL):
        found = Quarantine(tmp_path, clock=lambda: second).blame(
            [Culprit("m", "batch=4"), Culprit("x", "static")], [model]
        )
        assert found.keys() == {"m"}
        return found["m"].quarantined

    return blamed


def test_a_model_that_ran_at_two_deaths_stays_out_until_its_spec_changes(died, tmp_path):
    assert not died(0)
    assert Quarantine(tmp_path).check(MODEL) is None, "anything may kill a worker once"
    assert died(600)
    restarted = Quarantine(tmp_path)
    assert "batch=4" in (restarted.check(MODEL) or "")
    assert restarted.check(replace(MODEL, name="other")) is None
    assert restarted.check(replace(MODEL, object="ns/renamed-object")) is not None
    assert restarted.check(replace(MODEL, max_batch=1)) is None
    assert Quarantine(tmp_path).check(MODEL) is None, "the changed spec was tried, so the blame is gone for good"


def test_a_death_long_ago_or_of_another_spec_does_not_count(died):
    assert not died(0)
    assert not died(601)
    assert not died(602, replace(MODEL, max_batch=1))
    assert died(603, replace(MODEL, max_batch=1))


def test_a_damaged_quarantine_file_blames_nobody(tmp_path):
    (tmp_path / "quarantine.json").write_text("{")
    assert Quarantine(tmp_path).check(MODEL) is None
