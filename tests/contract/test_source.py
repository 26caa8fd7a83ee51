# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
GENERATED = re.compile(r"_pb2(_grpc)?\.pyi?$")
SOURCES = sorted(
    path
    for top in ("operator", "worker_image", "tests", "e2e")
    for path in (ROOT / top).rglob("*.py")
    if not GENERATED.search(path.name) and ".egg-info" not in str(path)
)


@pytest.mark.parametrize("path", SOURCES, ids=lambda p: str(p.relative_to(ROOT)))
def test_every_source_file_names_its_licence_first(path):
    lines = path.read_text().splitlines()
    first = lines[1] if lines and lines[0].startswith("#!") else (lines[0] if lines else "")
    assert first == "# SPDX-License-Identifier: Apache-2.0"


def test_the_operator_folder_does_not_shadow_the_standard_library():
    assert not (ROOT / "operator" / "__init__.py").exists()
