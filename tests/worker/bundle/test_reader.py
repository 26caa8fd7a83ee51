# SPDX-License-Identifier: Apache-2.0
"""Opening bundles: what is checked before a weight is read."""

from __future__ import annotations

import errno
import hashlib
import os
import pickle
import socket
import subprocess
import sys

import pytest
import yaml

from ballast_worker.bundle.errors import BundleError, MissingError
from ballast_worker.bundle.layout import pack
from ballast_worker.bundle.reader import open_bundle


def test_a_bundle_is_what_was_packed(packed):
    bundle = open_bundle(packed)
    assert bundle.manifest.name == "small"
    assert bundle.digest == "sha256:" + hashlib.sha256((packed / "manifest.yaml").read_bytes()).hexdigest()
    assert [placed.spec.name for placed in bundle.layout.tensors] == ["first.bias", "first.kernel"]
    assert bundle.layout == pack([entry.spec for entry in bundle.entries])
    assert hashlib.sha256(bundle.function_bytes()).hexdigest() in bundle.manifest.function.digest


def test_opening_a_bundle_and_reading_its_weights_never_imports_jax(packed):
    program = (
        "import sys; from ballast_worker.bundle.reader import open_bundle; from ballast_worker.bundle import cli, show\n"
        f"bundle = open_bundle({str(packed)!r}); bundle.function_bytes()\n"
        "with bundle.open_weights() as weights:\n"
        "    weights.read_into(memoryview(bytearray(bundle.layout.nbytes)), layout=bundle.layout)\n"
        "print([name for name in sys.modules if name.split('.')[0] in ('jax', 'jaxlib', 'pickle')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    loaded = set(eval(done.stdout))
    assert not {name for name in loaded if name.startswith("jax")}


@pytest.mark.parametrize("name", ["manifest.yaml", "function.stablehlo", "weights.safetensors"])
def test_a_missing_file_may_appear_later(bundle_path, name):
    (bundle_path / name).unlink()
    with pytest.raises(BundleError, match=f"{name} does not exist") as caught:
        open_bundle(bundle_path)
    assert caught.value.reason == "SourceNotFound"


def test_a_missing_directory_may_appear_later(tmp_path):
    with pytest.raises(BundleError, match="nothing does not exist") as caught:
        open_bundle(tmp_path / "nothing")
    assert caught.value.reason == "SourceNotFound"


def test_a_file_in_place_of_the_directory_is_refused(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(BundleError, match="a bundle is a directory") as caught:
        open_bundle(tmp_path / "file")
    assert caught.value.reason == "BundleInvalid"


@pytest.mark.parametrize("name", ["manifest.yaml", "function.stablehlo", "weights.safetensors"])
def test_links_are_refused_even_inside_the_bundle(bundle_path, name):
    (bundle_path / name).rename(bundle_path / "real")
    (bundle_path / name).symlink_to("real")
    with pytest.raises(BundleError, match=f"{name}: files of a bundle are regular files, never links") as caught:
        open_bundle(bundle_path)
    assert caught.value.reason == "BundleInvalid"


@pytest.mark.parametrize("name", ["manifest.yaml", "function.stablehlo", "weights.safetensors"])
def test_a_named_pipe_is_refused_without_waiting(bundle_path, name):
    (bundle_path / name).unlink()
    os.mkfifo(bundle_path / name)
    with pytest.raises(BundleError, match=f"{name} is not a regular file"):
        open_bundle(bundle_path)


def test_directories_and_sockets_are_refused(bundle_path, monkeypatch):
    weights = bundle_path / "weights.safetensors"
    weights.unlink()
    weights.mkdir()
    with pytest.raises(BundleError, match="is not a regular file"):
        open_bundle(bundle_path)
    weights.rmdir()
    monkeypatch.chdir(bundle_path)  # a socket's path has a short limit
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("weights.safetensors")
        with pytest.raises(BundleError, match="never links"):
            open_bundle(bundle_path)


def test_files_without_permission_are_named_with_the_user(bundle_path, monkeypatch):
    def refuse(path, flags, **_):
        raise PermissionError(errno.EACCES, "Permission denied", path)

    monkeypatch.setattr(os, "open", refuse)  # root, who may run the tests, is never refused
    with pytest.raises(BundleError, match=f"may not be read by user {os.getuid()}"):
        open_bundle(bundle_path)


def test_truncated_weights_are_refused_with_both_sizes(bundle_path):
    path = bundle_path / "weights.safetensors"
    size = path.stat().st_size
    os.truncate(path, size - 10)
    with pytest.raises(BundleError, match=f"has {size - 10} bytes, the manifest says {size}"):
        open_bundle(bundle_path)


def test_truncated_weights_that_the_manifest_agrees_with_are_refused_with_both_sizes(bundle_path, edit):
    path = bundle_path / "weights.safetensors"
    size = path.stat().st_size
    os.truncate(path, size - 10)
    edit(lambda document: document["weights"].update(bytes=size - 10))
    with pytest.raises(BundleError, match=f"truncated: the header accounts for {size} bytes, the file has {size - 10}"):
        open_bundle(bundle_path)


def test_names_that_only_the_manifest_has_are_refused_with_the_nearest(bundle_path, edit):
    edit(lambda document: document["weights"].update(tensors=["first.bias", "first.kernal"]))
    with pytest.raises(BundleError, match=r"no tensor 'first.kernal'.*did you mean 'first.kernel'"):
        open_bundle(bundle_path)


def test_tensors_that_the_manifest_does_not_name_are_refused(bundle_path, edit):
    edit(lambda document: document["weights"].update(tensors=["first.bias"]))
    with pytest.raises(BundleError, match=r"holds 1 tensors that .* does not name, the first is 'first.kernel'"):
        open_bundle(bundle_path)


@pytest.mark.parametrize("damaged", [lambda data: data[:-1], lambda _: b"", lambda data: data[:-1] + b"x"])
def test_other_function_bytes_are_refused_when_the_bundle_is_opened(bundle_path, damaged):
    path = bundle_path / "function.stablehlo"
    path.write_bytes(damaged(path.read_bytes()))
    with pytest.raises(
        BundleError, match=r"function.stablehlo has .*, the manifest says .*pack the bundle again"
    ) as caught:
        open_bundle(bundle_path)
    assert caught.value.reason == "BundleInvalid"


def test_a_function_that_was_changed_after_the_bundle_was_opened_is_refused_when_it_is_read(bundle_path):
    bundle = open_bundle(bundle_path)
    (bundle_path / "function.stablehlo").write_bytes(b"x" * bundle.manifest.function.bytes)
    with pytest.raises(BundleError, match=r"has digest sha256:.*, the manifest says sha256:"):
        bundle.function_bytes()


def test_a_huge_function_is_not_read(bundle_path):
    os.truncate(bundle_path / "function.stablehlo", 2**40)
    with pytest.raises(BundleError, match="at most"):
        open_bundle(bundle_path)


def test_only_a_directory_that_does_not_exist_is_missing(tmp_path, monkeypatch):
    with pytest.raises(MissingError):
        open_bundle(tmp_path / "nothing")

    def stale(path, flags, **_):
        raise OSError(errno.ESTALE, "Stale file handle", path)

    monkeypatch.setattr(os, "open", stale)
    with pytest.raises(BundleError, match="cannot be opened: Stale file handle") as caught:
        open_bundle(tmp_path)
    assert not isinstance(caught.value, MissingError)


def test_a_message_about_a_name_that_is_not_utf_8_can_be_sent(tmp_path):
    with pytest.raises(BundleError) as caught:
        open_bundle(os.fsdecode(os.fsencode(tmp_path) + b"/\xff"))
    assert str(caught.value).encode().endswith(b"udcff does not exist")


def test_the_digest_changes_with_every_byte_of_the_manifest(bundle_path):
    before = open_bundle(bundle_path).digest
    path = bundle_path / "manifest.yaml"
    path.write_text(path.read_text() + "# a comment\n")
    assert open_bundle(bundle_path).digest != before


def test_a_pickle_in_place_of_weights_is_never_loaded(bundle_path, edit):
    class Trap:
        def __reduce__(self):
            return (os.mkdir, (str(bundle_path / "executed"),))

    data = pickle.dumps(Trap())
    (bundle_path / "weights.safetensors").write_bytes(data)
    edit(lambda document: document["weights"].update(bytes=len(data)))
    with pytest.raises(BundleError):
        open_bundle(bundle_path)
    edit(refresh_function=data)
    with pytest.raises(BundleError):
        open_bundle(bundle_path, check_function=True)
    assert not (bundle_path / "executed").exists()


def test_errors_keep_their_reason_across_processes():
    error = pickle.loads(pickle.dumps(BundleError("SourceChanged", "text")))
    assert (error.reason, str(error)) == ("SourceChanged", "text")


def test_a_manifest_is_plain_yaml(packed):
    assert yaml.safe_load((packed / "manifest.yaml").read_text())["format"] == "ballast.dev/bundle/v1"
