# SPDX-License-Identifier: Apache-2.0
"""Whatever is in the file or in the environment, reading it ends in a configuration or in one line."""

from __future__ import annotations

from pathlib import Path

import pytest

from ballast_contract import config, loading

DIGITS = "9" * 5000


def refusal(tmp_path, text, environment=()):
    path = tmp_path / "worker.yaml"
    path.write_text(text)
    with pytest.raises(config.ConfigError) as caught:
        loading.load(path, dict(environment))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("text", ["device:", "device: 5", "device: []", "device: text"])
def test_a_variable_below_what_is_no_section_leaves_the_file_to_be_refused(tmp_path, text):
    assert "'device': must be a mapping of keys" in refusal(tmp_path, text, {"BALLAST_DEVICE_BUDGET": "1g"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("name: 2026-13-45", "line 1: '2026-13-45' is not plain text or a number; put it in quotes"),
        (f"device: {{budget: {DIGITS}}}", "not YAML"),
        ("[" * 1500, "not YAML"),
        ("\n".join(" " * depth + "a:" for depth in range(1500)), "nested deeper than 16 levels"),
        ("a: &x 1\nb: *x", "anchors (&) and aliases (*) are refused"),
        ("device: {budget: 1g}\nname: w\ndevice: {reserve: 1g}", "line 3: the key 'device' is given twice"),
        ("device: {budget: 1g, budget: 2g}", "line 1: the key 'budget' is given twice"),
        ("false", "must be a mapping of keys, not bool"),
        ("0", "must be a mapping of keys, not int"),
        ("a: 1\n---\nb: 1", "not YAML"),
    ],
)
def test_a_file_that_two_readers_could_understand_differently_is_refused(tmp_path, text, words):
    message = refusal(tmp_path, text)
    assert message.startswith(f"configuration file '{tmp_path / 'worker.yaml'}'")
    assert words in message


@pytest.mark.parametrize("text", ["", "# nothing\n", "---\n"])
def test_an_empty_file_is_all_defaults(tmp_path, text):
    path = tmp_path / "worker.yaml"
    path.write_text(text)
    assert loading.load(path, {}) == config.WorkerConfig()


@pytest.mark.parametrize("variable", ["BALLAST_DEVICE_BUDGET", "BALLAST_MODELS", "BALLAST_NAMESPACE"])
def test_an_empty_variable_is_refused(variable):
    with pytest.raises(config.ConfigError) as caught:
        loading.load(None, {variable: ""})
    assert str(caught.value) == f"environment variable '{variable}' is empty: unset it, or give a value"


@pytest.mark.parametrize("text", ["true", "null", "[x", "{", "5"])
def test_a_setting_that_is_text_takes_text(text):
    loaded = loading.load(None, {"BALLAST_NAME": text, "BALLAST_MODEL_DIRECTORY": text})
    assert (loaded.name, loaded.model_directory) == (text, Path(text))


def test_lists_mappings_and_switches_come_from_the_environment_too():
    loaded = loading.load(
        None,
        {
            "BALLAST_MODELS": '[{"name": "a", "uri": "pvc://c/a"}]',
            "BALLAST_STORES": '{"c": "/c"}',
            "BALLAST_MANAGED": "true",
        },
    )
    assert (loaded.models[0].uri, loaded.stores, loaded.managed) == ("pvc://c/a", {"c": Path("/c")}, True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[" * 100_000, "is nested too deep"),
        (f"[{DIGITS}]", "is not valid JSON"),
        ("nothing", "is not valid JSON"),
        ('[{"name": "a", "name": "b"}]', "the key 'name' is given twice"),
    ],
)
def test_json_that_cannot_be_read_is_refused_by_its_variable(text, words):
    with pytest.raises(config.ConfigError) as caught:
        loading.load(None, {"BALLAST_MODELS": text})
    assert str(caught.value).startswith("environment variable 'BALLAST_MODELS'")
    assert words in str(caught.value)
