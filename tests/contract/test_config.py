# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from ballast_contract import config, former_names, loading, validation


def written(tmp_path, text):
    path = tmp_path / "worker.yaml"
    path.write_text(text)
    return path


def test_defaults_need_no_file():
    assert loading.load(None, {}).serving.http_port == 8000


def test_sizes_are_read_in_any_case_and_percentages_of_the_card_stay_percentages(tmp_path):
    loaded = loading.load(written(tmp_path, "device: {budget: 90%, reserve: 1.5G}\nhost: {budget: UNLIMITED}\n"), {})
    assert loaded.device.budget == "90%"
    assert loaded.device.reserve == 3 << 29
    assert loaded.host.budget == "unlimited"


def test_the_environment_wins_over_the_file(tmp_path):
    path = written(tmp_path, "device: {budget: 1g}\n")
    assert loading.load(path, {"BALLAST_DEVICE_BUDGET": "2g"}).device.budget == 2 << 30


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("devise: {budget: 1g}", "unknown key 'devise': did you mean 'device'?"),
        ("device: {bugdet: 1g}", "unknown key 'device.bugdet': did you mean 'device.budget'?"),
        (
            "device: {weights: {slakPercent: 3}}",
            "unknown key 'device.weights.slakPercent': did you mean 'device.weights.slackPercent'?",
        ),
        ("models: [{name: a, uri: file:///a, residencey: device}]", "did you mean 'models.0.residency'?"),
        ("mem_fraction: 0.9", "its name here is device.budget"),
        ("device: {budget: 1 parsec}", "is not a size"),
        ("device: {weights: {maxPercent: 101}}", "must be at most 100"),
        ("serving: {httpPort: 99999}", "65535"),
        ("[1, 2]", "must be a mapping"),
        ("device: {budget: [", "not YAML"),
    ],
)
def test_a_bad_file_is_refused_naming_the_key_and_what_is_allowed(tmp_path, text, message):
    with pytest.raises(config.ConfigError) as caught:
        loading.load(written(tmp_path, text), {})
    assert message in str(caught.value)


def test_a_missing_file_is_refused_by_name(tmp_path):
    with pytest.raises(config.ConfigError, match=r"nothing\.yaml"):
        loading.load(tmp_path / "nothing.yaml", {})


def test_an_unknown_variable_with_our_prefix_is_refused_naming_the_nearest():
    with pytest.raises(config.ConfigError, match="did you mean 'BALLAST_DEVICE_BUDGET'"):
        loading.load(None, {"BALLAST_DEVICE_BUGDET": "1g"})


def test_every_key_one_letter_off_is_refused(tmp_path):
    """kubernetes/kubernetes#111074, a misspelled key is dropped without a word."""

    def keys(section, path):
        for name, field in section.model_fields.items():
            alias = field.alias or name
            yield (*path, alias)
            if isinstance(field.annotation, type) and issubclass(field.annotation, config.Section):
                yield from keys(field.annotation, (*path, alias))

    for path in keys(config.WorkerConfig, ()):
        misspelled = (*path[:-1], path[-1] + "x")
        text = "".join("  " * depth + part + ":\n" for depth, part in enumerate(misspelled[:-1]))
        text += "  " * (len(misspelled) - 1) + f"{misspelled[-1]}: 1\n"
        with pytest.raises(config.ConfigError, match="unknown key"):
            loading.load(written(tmp_path, text), {})


def test_names_of_the_first_system_are_answered_with_ours():
    for old, new in former_names.RENAMED.items():
        assert new in validation.unknown_key("", old, ["device"])


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "runtime: {backend: cuda, host_weight_budget: 48g, preallocate: true}",
            [
                "unknown key 'runtime': its settings have other places here: 'backend' is backend, ",
                "'host_weight_budget' is host.budget, 'preallocate' has none; docs/reference/old-names.md has all names",
            ],
        ),
        ("scheduler: {compaction_interval: 200}", ["'compaction_interval' is compactionInterval"]),
        ("scheduling: {compaction_interval: 1}", ["'compaction_interval' is spec.placement.compaction.everyRepacks"]),
        (
            "global: {runtime: {mem_fraction: 0.9}, log: x}",
            ["'mem_fraction' is device.budget (bytes, or a percentage of the card), 'log' has none"],
        ),
        ("model_dirs: [a]", ["unknown key 'model_dirs': its name here is modelDirectory"]),
        ("runtime:", ["unknown key 'runtime': known keys are"]),
    ],
)
def test_a_file_of_the_first_system_is_refused_naming_where_each_setting_went(tmp_path, text, words):
    with pytest.raises(config.ConfigError) as caught:
        loading.load(written(tmp_path, text), {})
    for part in words:
        assert part in str(caught.value)


@pytest.mark.parametrize("backend", ["eager", "lpt_packing"])
def test_a_value_of_the_first_system_is_answered_with_ours(tmp_path, backend):
    with pytest.raises(config.ConfigError, match=rf"got '{backend}': its name here is {former_names.RENAMED[backend]}"):
        loading.load(written(tmp_path, f"backend: {backend}"), {})


def test_variables_of_the_first_system_are_named_with_ours_and_change_nothing():
    environment = {
        "INFERENCE_SERVER_RUNTIME_MEM_FRACTION": "0.5",
        "INFERENCE_SERVER_RUNTIME_HOST_WEIGHT_BUDGET": "1g",
        "INFERENCE_SERVER_RUNTIME_PREALLOCATE": "true",
    }
    assert loading.load(None, environment) == loading.load(None, {})
    host, fraction, preallocate = loading.unread_variables(environment | {"PATH": "/bin"})
    assert host == (
        "environment variable 'INFERENCE_SERVER_RUNTIME_HOST_WEIGHT_BUDGET' is not read: set BALLAST_HOST_BUDGET"
    )
    assert fraction.endswith("is not read: set BALLAST_DEVICE_BUDGET (bytes, or a percentage of the card)")
    assert preallocate.endswith("is not read: see docs/reference/old-names.md")


def test_every_variable_of_the_first_system_that_has_a_counterpart_names_one_that_is_read():
    for sentence in loading.unread_variables(dict.fromkeys(former_names.VARIABLES, "1")):
        assert "is not read: set BALLAST_" in sentence
