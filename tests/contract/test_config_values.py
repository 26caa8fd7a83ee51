# SPDX-License-Identifier: Apache-2.0
"""Values that no worker could use are refused when they are read: key, value, limit, what to write."""

from __future__ import annotations

import pytest

from ballast_contract import config, loading, validation
from ballast_contract.quantities import MAX_SIZE


def refusal(tmp_path, text):
    path = tmp_path / "worker.yaml"
    path.write_text(text)
    with pytest.raises(config.ConfigError) as caught:
        loading.load(path, {})
    message = str(caught.value)
    assert "\n" not in message
    assert len(message) < 400
    return message


@pytest.mark.parametrize("key", ["device.budget", "device.reserve", "device.scratch", "host.budget"])
@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("-5", "a size is at least 0 (got -5)"),
        ("'-5g'", "'-5g' is not a size: write a number and a unit"),
        (str(MAX_SIZE + 1), f"a size is at most 1024t, which is {MAX_SIZE} bytes (got {MAX_SIZE + 1})"),
        ("1025t", "'1025t' is too large: a size is at most 1024t"),
        ("9" * 400 + "g", "is too large: a size is at most 1024t"),
        ("0x" + "f" * 5000, "a size is at most 1024t"),
        ("true", "(got true)"),
        ("1.5", "must be a size: write bytes, or a number and a unit, as in 512m, 1.5t or 60Gi (got 1.5)"),
        ("[1]", "must be a size: write bytes"),
    ],
)
def test_a_size_is_from_zero_to_a_pebibyte(tmp_path, key, value, words):
    section, setting = key.split(".")
    message = refusal(tmp_path, f"{section}: {{{setting}: {value}}}")
    assert message.startswith(f"'{key}': ")
    assert words in message


def test_the_largest_size_is_taken():
    assert config.Device.model_validate({"budget": "1024t"}).budget == MAX_SIZE


@pytest.mark.parametrize("value", ["1000", "3m", "0"])
def test_a_segment_is_a_multiple_of_two_mebibytes(tmp_path, value):
    message = refusal(tmp_path, f"host: {{segmentBytes: {value}}}")
    assert message.startswith(
        "'host.segmentBytes': must be a multiple of 2097152 bytes (2m), and not 0: write 64m (got "
    )


@pytest.mark.parametrize("mode", ["'0000'", "'0200'", "'0400'", "0660", "'660'", "'0999'"])
def test_the_owner_reads_and_writes_the_files_of_the_pool(tmp_path, mode):
    message = refusal(tmp_path, f"host: {{fileMode: {mode}}}")
    assert "'host.fileMode': must be four octal digits in quotes with which the owner reads and writes" in message


def test_two_ports_that_are_the_same_are_refused_naming_both(tmp_path):
    message = refusal(tmp_path, "serving: {httpPort: 9000, introspectionPort: 9000}")
    assert message == (
        "'serving': httpPort and introspectionPort are both 9000: give one another port, or 0 for a free one"
    )
    assert config.Serving.model_validate({"httpPort": 0, "grpcPort": 0}).grpc_port == 0


def test_two_models_of_one_name_are_refused(tmp_path):
    message = refusal(
        tmp_path, "models: [{name: a, uri: file:///a}, {name: b, uri: file:///b}, {name: a, uri: file:///c}]"
    )
    assert message == "'models': entries 0 and 2 are both called 'a': give one another name"


@pytest.mark.parametrize("uri", ["s3://bucket/a", "file://host/a", "pvc://claim", "file:///a/../b", "''"])
def test_a_uri_that_could_never_be_served_is_refused(tmp_path, uri):
    assert "'models.0.uri': source.uri" in refusal(tmp_path, f"models: [{{name: a, uri: {uri}}}]")


@pytest.mark.parametrize("host", ["'not an address'", "''", "'[::1]'", "'a/b'"])
def test_what_nothing_can_listen_on_is_refused(tmp_path, host):
    assert "'serving.host': must be an address of this machine" in refusal(tmp_path, f"serving: {{host: {host}}}")


@pytest.mark.parametrize(
    "key", ["executableStore", "stateDirectory", "modelDirectory", "host.directory", "control.tlsDirectory", "name"]
)
def test_no_path_and_no_name_has_the_character_that_ends_text(tmp_path, key):
    section, _, setting = key.rpartition(".")
    text = f'{setting}: "/a\\0b"'
    assert f"'{key}': must " in refusal(tmp_path, f"{section}: {{{text}}}" if section else text)


@pytest.mark.parametrize("key", ["executableStore", "stateDirectory", "modelDirectory"])
def test_the_home_of_nobody_is_refused_by_the_setting(tmp_path, key):
    message = refusal(tmp_path, f"{key}: ~nobody-of-that-name/x")
    assert message == f"'{key}': '~nobody-of-that-name/x' begins with a home that is not known here: write it out"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("device:", "'device': must be a mapping of keys to values (got nothing)"),
        ("device: 5", "'device': must be a mapping of keys to values (got 5)"),
        ("models: 5", "'models': must be a list (got 5)"),
        ("models: [5]", "'models.0': must be a mapping of keys to values (got 5)"),
        ("models: [{uri: file:///a}]", "'models.0.name': is missing"),
        ("stores: []", "'stores': must be a mapping of keys"),
        ("name: 5", "'name': must be text; put it in quotes (got 5)"),
        ("name: ''", "'name': needs a length of at least 1 (got '')"),
        ("managed: 5", "'managed': must be true or false (got 5)"),
        ("backend: tpu", "'backend': must be 'cpu' or 'cuda' (got 'tpu')"),
        ("serving: {httpPort: x}", "'serving.httpPort': must be a whole number (got 'x')"),
        ("serving: {httpPort: true}", "'serving.httpPort': must be a number (got true)"),
        ("serving: {httpPort: 70000}", "'serving.httpPort': must be at most 65535 (got 70000)"),
        ("stateDirectory: 5", "'stateDirectory': must be a path (got 5)"),
        ("device: {scratch: some}", "'device.scratch': 'some' is not a size: write a number and a unit"),
    ],
)
def test_a_value_of_the_wrong_kind_is_refused_in_words_for_people(tmp_path, text, message):
    assert refusal(tmp_path, text).startswith(message)


def test_a_value_that_is_too_long_to_show_is_cut():
    assert len(validation.short("x" * 10_000)) <= 80
    assert validation.short(1 << 40_000) == "a number of more than 40 digits"
