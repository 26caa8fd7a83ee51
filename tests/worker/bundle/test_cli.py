# SPDX-License-Identifier: Apache-2.0
"""The command line `ballast-bundle`."""

from __future__ import annotations

import json

import pytest

from ballast_worker.bundle.cli import main
from ballast_worker.bundle.reader import open_bundle

SOURCE = """
import numpy as np

def times(parameters, x):
    return x * parameters["factor"]

def bundle(factor="2"):
    return dict(name="times", function=times, parameters={"factor": np.float32(factor)},
                inputs=[("x", "float32", ("batch",))], batch_dimension="batch", max_batch=2)

def wrong():
    return {"nam": "times"}

def nothing():
    return None

def changed(**changes):
    return lambda: bundle() | changes

typo = changed(inputs=[("x", "flaot32", ("batch",))])
pair = changed(inputs=[("x", "float32")])
number = changed(inputs=[("x", "float32", (1.5,))])
text = changed(inputs="x")
batch = changed(max_batch="x")
programs = changed(programs="x")
program = changed(programs=[{"batch": "x"}], max_batch=None)
platform = changed(platforms="cpu")
uncallable = changed(function=None)

def needs(factor):
    return bundle(factor)

def fails():
    return {}["absent"]

def absent():
    open("absent.npz")

def traced(parameters, x):
    raise RuntimeError("in the function")

untraceable = changed(function=traced)

value = 3
"""


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    path = tmp_path / "times_model.py"
    path.write_text(SOURCE)
    return path


@pytest.mark.parametrize("spelled", ["times_model:bundle", "{}:bundle"])
def test_pack_makes_a_bundle_from_a_factory(source, tmp_path, capsys, spelled):
    assert main(["pack", spelled.format(source), "--out", str(tmp_path / "b"), "--set", "factor=3"]) == 0
    out = capsys.readouterr().out
    assert open_bundle(tmp_path / "b", check_function=True).digest in out
    assert "program      batch=2" in out


def test_pack_replaces_a_bundle_only_on_request(source, tmp_path, capsys):
    command = ["pack", "times_model:bundle", "--out", str(tmp_path / "b")]
    assert main(command) == 0
    assert main(command) == 2
    assert "--overwrite" in capsys.readouterr().err
    assert main([*command, "--overwrite"]) == 0


@pytest.mark.parametrize(
    ("spelled", "message"),
    [
        ("times_model", "'times_model' is not MODULE:FACTORY"),
        ("times_model:bundel", "no function 'bundel': did you mean 'bundle'?"),
        ("times_model:value", "no function 'value'"),
        ("missing_model:bundle", "module 'missing_model' cannot be imported"),
        ("missing/model.py:bundle", "missing/model.py does not exist"),
        ("times_model:wrong", "unknown key 'nam': did you mean 'name'?"),
        ("times_model:nothing", "returned NoneType, not a dict"),
        ("times_model:typo", "input 'x' has dtype 'flaot32': did you mean 'float32'?"),
        ("times_model:pair", "an input is ('x', 'float32') (tuple); it must be a name, a dtype and a shape"),
        ("times_model:number", "an axis of input 'x' is 1.5"),
        ("times_model:text", "inputs is 'x' (str); it must be a list"),
        ("times_model:batch", "max_batch is 'x' (str); it must be a whole number"),
        ("times_model:programs", "programs is 'x' (str); it must be a list of dicts"),
        ("times_model:program", "programs[0]: batch is 'x' (str); it must be a whole number"),
        ("times_model:platform", "platforms is 'cpu' (str); it must be a list of text"),
        ("times_model:uncallable", "function is None (NoneType); it must be a function"),
        ("times_model:needs", "cannot be called with these settings: missing a required argument: 'factor'"),
    ],
)
def test_pack_names_what_is_wrong_with_its_factory(source, tmp_path, capsys, spelled, message):
    assert main(["pack", spelled, "--out", str(tmp_path / "b")]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize(
    ("factory", "message"),
    [("bundle", "has no such argument: did you mean 'factor'?"), ("nothing", "has no such argument: it takes none")],
)
def test_pack_names_the_nearest_setting_of_its_factory(source, tmp_path, capsys, factory, message):
    command = ["pack", f"times_model:{factory}", "--out", str(tmp_path / "b"), "--set", "facter=3"]
    assert main(command) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "--set facter: " in line
    assert message in line


@pytest.mark.parametrize(
    ("factory", "whose"),
    [
        ("fails", "times_model:fails raised KeyError"),
        ("absent", "times_model:absent raised FileNotFoundError"),
        ("untraceable", "the function of times_model:untraceable raised RuntimeError"),
    ],
)
def test_pack_says_whose_code_a_traceback_is_of(source, tmp_path, capsys, factory, whose):
    assert main(["pack", f"times_model:{factory}", "--out", str(tmp_path / "b")]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Traceback")
    assert lines[-1] == f"error: {whose}, see above"


@pytest.mark.parametrize("out", ["/proc/x", "/" + "x" * 300, "/dev/null/x"])
def test_pack_names_a_place_that_cannot_be_written(source, capsys, out):
    assert main(["pack", "times_model:bundle", "--out", out]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --out {out} cannot be written: ")


@pytest.mark.parametrize(
    ("out", "why"), [("/", "is a mount point"), (".", "is the working directory"), ("", "is the working")]
)
def test_pack_leaves_mount_points_and_the_working_directory_alone(source, tmp_path, monkeypatch, capsys, out, why):
    (tmp_path / "empty").mkdir()
    monkeypatch.chdir(tmp_path / "empty")
    assert main(["pack", "times_model:bundle", "--out", out, "--overwrite"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert why in line
    assert "is left alone" in line
    assert (tmp_path / "empty").is_dir()


def test_inspect_shows_every_fact_a_user_asks_for(packed, capsys):
    assert main(["inspect", str(packed)]) == 0
    out = capsys.readouterr().out
    for fact in (
        "name         small",
        open_bundle(packed).digest,
        "2 tensors, 5120 bytes (5.0 KiB) packed",
        "input        x float32[batch, sequence, 40]",
        "output       pooled float32[batch, 30]",
        "program      batch=2,sequence=8",
        "batching     along batch",
    ):
        assert fact in out


def test_inspect_prints_one_json_document(packed, capsys):
    assert main(["inspect", str(packed), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["digest"] == open_bundle(packed).digest
    assert document["manifest"]["batchDimension"] == "batch"
    assert document["packedBytes"] == 5120
    assert document["tensors"][1] == {
        "name": "first.kernel", "dtype": "float32", "shape": [40, 30], "bytes": 4800, "packedOffset": 256,
    }  # fmt: skip


def test_verify_says_that_all_is_well(packed, capsys):
    assert main(["verify", str(packed)]) == 0
    assert f"ok, digest {open_bundle(packed).digest}" in capsys.readouterr().out
    assert main(["verify", str(packed), "--quiet"]) == 0
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("file", ["function.stablehlo", "weights.safetensors"])
def test_verify_finds_one_changed_byte(bundle_path, capsys, file):
    data = bytearray((bundle_path / file).read_bytes())
    data[-1] ^= 1
    (bundle_path / file).write_bytes(data)
    assert main(["verify", str(bundle_path)]) == 1
    assert capsys.readouterr().err.startswith("BundleInvalid: ")


def test_a_missing_bundle_is_a_reason_and_not_a_traceback(tmp_path, capsys):
    assert main(["inspect", str(tmp_path / "nothing")]) == 1
    assert capsys.readouterr().err.startswith("SourceNotFound: ")


@pytest.mark.parametrize(
    ("command", "message"),
    [
        (["inspct", "x"], "unknown command 'inspct': did you mean 'inspect'?"),
        (["inspect", "x", "--jsn"], "did you mean '--json'?"),
        (["verify", "x", "--quite"], "did you mean '--quiet'?"),
        (["pack", "a:b", "--out", "x", "--overwite"], "did you mean '--overwrite'?"),
        (["pack", "a:b", "--out", "x", "--set", "novalue"], "'novalue' is not KEY=VALUE"),
        (["pack", "a:b"], "--out"),
        ([], "required"),
    ],
)
def test_wrong_commands_name_the_nearest_right_one(capsys, command, message):
    with pytest.raises(SystemExit) as caught:
        main(command)
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize("command", [["--help"], ["pack", "--help"], ["inspect", "--help"], ["verify", "--help"]])
def test_help_has_examples(capsys, command):
    with pytest.raises(SystemExit) as caught:
        main(command)
    assert caught.value.code == 0
    assert "ballast-bundle verify ./encoder" in capsys.readouterr().out
