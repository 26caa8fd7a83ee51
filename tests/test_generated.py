# SPDX-License-Identifier: Apache-2.0
"""Generated files are what their sources say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_every_generated_file_is_up_to_date():
    command = [sys.executable, str(ROOT / "e2e" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_handlers_of_the_inference_service_are_not_generated():
    assert not (ROOT / "worker_image" / "ballast_contract" / "v1" / "inference_pb2_grpc.py").exists()


def test_every_alert_has_a_runbook_and_every_runbook_an_alert():
    rules = (ROOT / "charts" / "ballast" / "rules" / "ballast.yaml").read_text()
    alerts = {line.split()[-1] for line in rules.splitlines() if line.strip().startswith("- alert:")}
    pages = {path.stem for path in (ROOT / "docs" / "runbooks").glob("Ballast*.md")}
    assert alerts == pages
