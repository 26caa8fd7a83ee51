# SPDX-License-Identifier: Apache-2.0
"""The examples in the documents work as they stand."""

from __future__ import annotations

import re
from pathlib import Path

from ballast_worker.bundle.cli import main
from ballast_worker.bundle.manifest import read_manifest
from ballast_worker.bundle.reader import open_bundle

DOCS = Path(__file__).parents[3] / "docs"


def block(document: str, language: str) -> str:
    text = (DOCS / document).read_text(encoding="utf-8")
    return re.search(rf"```{language}\n(.*?)```", text, re.DOTALL)[1]


def test_the_how_to_packs_its_example(tmp_path):
    (tmp_path / "encoder.py").write_text(block("how-to/make-a-bundle.md", "python"))
    out = tmp_path / "encoder"
    assert main(["pack", f"{tmp_path / 'encoder.py'}:bundle", "--out", str(out), "--set", "width=128"]) == 0
    assert open_bundle(out, check_function=True).manifest.outputs[0].shape == ("batch", 128)


def test_the_reference_shows_a_valid_manifest():
    text = block("reference/bundle.md", "yaml").replace(", ...]", "]")
    assert read_manifest(text.encode()).batch_dimension == "batch"
