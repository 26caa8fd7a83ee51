# SPDX-License-Identifier: Apache-2.0
"""What documents name exists, and what they tell people to run runs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from ballast_contract import config, former_names, loading, names, reasons
from ballast_contract.reasons import Reason
from ballast_operator.reconcile import naming
from ballast_worker.bundle import cli as bundle_cli
from ballast_worker.control import main as worker_cli
from ballast_worker.serving import refusals
from ballast_worker.serving.status import grpc_status, http_status

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
TUTORIAL = DOCS / "tutorial" / "first-model.md"
OBSERVE, SECURITY, TROUBLESHOOT, CALL = (
    DOCS / "how-to" / f"{name}.md" for name in ("observe", "security", "troubleshoot", "call-a-model")
)

NOT_OURS = {".git", ".venv", "build", "node_modules"}
CONDITIONS = {
    *("Accepted", "Placed", "Loaded", "Ready", "Degraded"),
    *("PlanFits", "WorkersReady", "Fragmented", "UpToDate"),
}
KUBERNETES = {
    *("ContainerCreating", "OOMKilled", "ReadOnlyMany", "ReadWriteOnce", "ReadWriteMany", "RuntimeDefault"),
}


def documents() -> list[Path]:
    found = (path.relative_to(ROOT) for path in ROOT.rglob("*.md"))
    return sorted(path for path in found if not any(p in NOT_OURS or p.startswith(".") for p in path.parts))


def guides() -> list[Path]:
    return sorted([*(DOCS / "how-to").glob("*.md"), *(DOCS / "runbooks").glob("*.md"), TUTORIAL, ROOT / "README.md"])


def prose(text: str) -> str:
    return re.sub(r"```.*?```", "", text, flags=re.DOTALL)


def anchors(path: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", prose(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL)


def objects(path: Path) -> Iterator[Any]:
    for block in blocks(path, "yaml"):
        yield from yaml.safe_load_all(block)


@pytest.mark.parametrize("path", documents(), ids=str)
def test_every_relative_link_resolves(path):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", prose((ROOT / path).read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (ROOT / path.parent / file) if file else ROOT / path
        if not target.exists() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_the_index_links_every_document_but_runbooks_and_design_notes():
    linked = set(re.findall(r"\]\(([^)]+)\)", (DOCS / "README.md").read_text(encoding="utf-8")))
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md") if path.name != "README.md"}
    assert {page for page in pages if page.split("/")[0] not in {"runbooks", "design"}} <= linked


@pytest.mark.parametrize("path", guides(), ids=lambda path: path.name)
def test_every_word_that_looks_like_a_reason_is_one(path):
    words = set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]+)+|[A-Z]+[a-z]+[A-Za-z]*)`", path.read_text(encoding="utf-8")))
    kinds = {"InferenceModel", "WeightBudget"}
    assert words - {reason.value for reason in Reason} - CONDITIONS - KUBERNETES - kinds == set()


def test_the_tables_of_troubleshooting_begin_with_reasons():
    rows = re.findall(r"^\| (`.*?) \| ", TROUBLESHOOT.read_text(encoding="utf-8"), re.MULTILINE)
    words = [word for row in rows for word in re.findall(r"`(\w+)`", row)]
    assert len(words) > 30
    assert [word for word in words if word not in {reason.value for reason in Reason}] == []


def test_every_reason_for_which_the_user_must_change_something_has_a_row():
    source = Path(reasons.__file__).read_text(encoding="utf-8")
    section = source.partition("# The user must change something\n")[2].partition("\n    # ")[0]
    wanted = set(re.findall(r'^    [A-Z_]+ = "(\w+)"', section, re.MULTILINE))
    pages = [TROUBLESHOOT, *(DOCS / "runbooks").glob("*.md")]
    rows = [row for page in pages for row in re.findall(r"^\| (`.*?) \| ", page.read_text("utf-8"), re.MULTILINE)]
    assert len(wanted) > 30
    assert wanted - {word for row in rows for word in re.findall(r"`(\w+)`", row)} == set()


def test_the_table_of_answers_has_a_model_that_was_replaced_while_the_call_waited():
    table = CALL.read_text(encoding="utf-8").partition("## What the answers mean")[2].partition("\n## ")[0]
    rows = [[cell.strip() for cell in row.split(" | ")] for row in re.findall(r"^\| (\d.*) \|$", table, re.MULTILINE)]
    replaced = refusals.replaced("m")
    found = [
        row for row in rows if row[0].startswith(str(http_status(replaced))) and row[1] == grpc_status(replaced).name
    ]
    assert [row[3] for row in found if "replaced" in row[2] and "metadata" in row[3]]


def test_every_metric_that_is_named_exists():
    reference = (DOCS / "reference" / "metrics.md").read_text(encoding="utf-8")
    known = set(re.findall(r"^\| `(\w+)` \|", reference, re.MULTILINE))
    for path in guides():
        named = set(re.findall(r"\b(?:worker|ballast_operator)_[a-z_]+\b(?!/)", path.read_text(encoding="utf-8")))
        assert named - known - {"worker_weight", "worker_image"} == set(), path.name


def test_every_annotation_and_label_that_is_named_exists():
    known = {value for name, value in vars(names).items() if name.startswith(("LABEL_", "ANNOTATION_"))}
    for path in guides():
        named = set(re.findall(r"\bballast\.dev/[a-z-]+\b(?!1)", path.read_text(encoding="utf-8")))
        assert named - known <= {names.FINALIZER}, path.name


def test_every_field_that_is_named_exists():
    types: dict[str, str] = {}
    for kind in ("inferencemodel", "weightbudget"):
        text = (DOCS / "reference" / f"{kind}.md").read_text(encoding="utf-8")
        for root in ("spec", "status"):
            section = text.partition(f"\n## {root}\n")[2].partition("\n## ")[0]
            rows = re.findall(r"^\| `([\w.\[\]]+)` \| (\S+)", section, re.MULTILINE)
            types |= {f"{root}.{field}": type_ for field, type_ in rows}
    for path in guides():
        named = re.findall(r"`((?:spec|status)\.[A-Za-z.\[\]]*\w(?:\[\])?)[`:=]", path.read_text(encoding="utf-8"))
        for field in (field.removesuffix("[]") for field in named):
            assert field in types or types.get(field.rpartition(".")[0]) == "map", f"{path.name}: {field}"


def test_every_former_name_that_is_answered_is_in_the_table_of_names():
    table = (DOCS / "reference" / "old-names.md").read_text(encoding="utf-8")
    settings = {f"{section}.{name}" for section, found in former_names.SECTIONS.items() for name in found}
    assert {name for name in settings if f"`{name}" not in table} == set()
    assert {word for word in former_names.RENAMED if word not in table} == set()


def test_the_ports_of_observe_are_those_of_the_code():
    rows = re.findall(r"^\| (\d+) \| worker \| `?(\w*)`? ?\|", OBSERVE.read_text(encoding="utf-8"), re.MULTILINE)
    ports = [names.HTTP_PORT, names.GRPC_PORT, names.METRICS_PORT, names.CONTROL_PORT, names.INTROSPECTION_PORT]
    assert rows == [
        (str(port), name) for port, name in zip(ports, ["http", "grpc", "metrics", "control", ""], strict=True)
    ]


def test_the_values_of_observe_are_those_of_the_chart():
    values = yaml.safe_load((ROOT / "charts" / "ballast" / "values.yaml").read_text(encoding="utf-8"))
    (shown,) = objects(OBSERVE)
    for name, section in shown["monitoring"].items():
        assert section.keys() <= values["monitoring"][name].keys()


def test_the_network_policy_selects_workers_and_admits_the_operator():
    (policy,) = objects(SECURITY)
    labels = naming.labels(component="worker", budget="default")
    assert policy["spec"]["podSelector"]["matchLabels"].items() <= labels.items()
    helpers = (ROOT / "charts" / "ballast" / "templates" / "_helpers.tpl").read_text(encoding="utf-8")
    (control,) = (rule for rule in policy["spec"]["ingress"] if "from" in rule)
    assert [port["port"] for port in control["ports"]] == [names.CONTROL_PORT]
    (source,) = control["from"]
    for label, value in source["podSelector"]["matchLabels"].items():
        assert f"\n{label}: {value}\n" in helpers
    opened = {port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]}
    assert opened == {names.HTTP_PORT, names.GRPC_PORT, names.METRICS_PORT, names.CONTROL_PORT}


@pytest.mark.parametrize("path", guides(), ids=lambda path: path.name)
def test_every_yaml_block_can_be_read(path):
    assert all(isinstance(found, dict) for found in objects(path))


def test_the_worker_configuration_of_the_how_to_is_valid(tmp_path):
    (text,) = blocks(DOCS / "how-to" / "run-a-worker-alone.md", "yaml")
    (tmp_path / "worker.yaml").write_text(text)
    assert loading.load(tmp_path / "worker.yaml", {}).models[0].residency is config.ResidencyWish.DEVICE


def test_the_tutorial_packs_its_model_and_its_configuration_is_valid(tmp_path, monkeypatch, capsys):
    (script,) = blocks(TUTORIAL, "python")
    (tmp_path / "make_bundle.py").write_text(script)
    environment = os.environ | {"JAX_PLATFORMS": "cpu"}
    subprocess.run([sys.executable, "make_bundle.py"], cwd=tmp_path, env=environment, check=True)
    monkeypatch.chdir(tmp_path)
    assert bundle_cli.main(["inspect", "models/classifier"]) == 0
    assert "classifier" in capsys.readouterr().out

    (line,) = re.findall(r"^printf '(.*)' > worker.yaml$", TUTORIAL.read_text(encoding="utf-8"), re.MULTILINE)
    (tmp_path / "worker.yaml").write_text(line.replace("\\n", "\n"))
    assert worker_cli.main(["check-config", "--config", "worker.yaml"]) == 0
    shown = yaml.safe_load(capsys.readouterr().out)
    assert (shown["modelDirectory"], shown["device"]["budget"]) == ("models", 64 << 20)
