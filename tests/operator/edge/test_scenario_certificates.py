# SPDX-License-Identifier: Apache-2.0
"""Certificates of the control channel: made, shared, replaced under running streams, and never taken from others."""

from __future__ import annotations

import asyncio
import base64
import hashlib

import pytest
from cryptography import x509
from helpers.control_tls import files, moment
from helpers.fake_worker import FakeWorker
from helpers.operator_rig import BUDGETS, LEASES, MODELS, PODS, SECRETS, Rig, RunningOperator

from ballast_contract import names
from ballast_operator.edge.preflight import PreflightError
from ballast_operator.fleet.authority import Authority, Signer, renewed

pytestmark = pytest.mark.apiserver

_AGED = {"days": 260}
"""Old enough for a successor to be announced, with a hundred days left."""


async def data(rig: Rig, name: str) -> dict[str, bytes]:
    secret = await rig.get(SECRETS, name)
    return {key: base64.b64decode(text) for key, text in secret["data"].items()}


async def put(rig: Rig, name: str, contents: dict[str, bytes], **labels: str) -> None:
    text = {key: base64.b64encode(value).decode() for key, value in contents.items()}
    body = {"metadata": {"name": name, "namespace": rig.namespace, "labels": labels}, "data": text}
    await rig.client.create(SECRETS, body)


async def authority(rig: Rig) -> Authority:
    return Authority.from_data(await data(rig, names.OPERATOR_CERTIFICATE))


async def worker_of(rig: Rig) -> FakeWorker:
    await rig.until_condition(BUDGETS, "default", "Ready", "True")
    [worker] = rig.workers.values()
    return worker


async def obeyed(rig: Rig, worker: FakeWorker, epoch: int) -> None:
    async def seen() -> bool:
        return worker.epoch == epoch

    await rig.until(seen)


def secrets_read(operator: RunningOperator) -> float:
    labels = {"verb": "get", "resource": "secrets", "code": "200"}
    return operator.registry.get_sample_value("ballast_operator_api_request_seconds_count", labels) or 0.0


async def test_workers_get_a_certificate_of_the_operators_authority_by_a_secret_that_goes_with_the_last_budget(
    pool: Rig,
):
    await pool.budget()
    await pool.budget("other", replicas=0)
    await worker_of(pool)
    held = await data(pool, names.WORKER_CERTIFICATE)
    assert set(held) == {"ca.crt", "tls.crt", "tls.key"}
    signer = (await authority(pool)).signer
    x509.load_pem_x509_certificate(held["tls.crt"]).verify_directly_issued_by(signer.certificate)
    secret = await pool.client.get(SECRETS, pool.namespace, names.WORKER_CERTIFICATE)

    async def owned_by_both() -> bool:
        secret = await pool.client.get(SECRETS, pool.namespace, names.WORKER_CERTIFICATE)
        return {owner["name"] for owner in secret["metadata"]["ownerReferences"]} == {"default", "other"}

    await pool.until(owned_by_both)
    [pod] = await pool.pods()
    assert {"name": "tls", "secret": {"secretName": names.WORKER_CERTIFICATE, "defaultMode": 420}} in pod["spec"][
        "volumes"
    ]
    assert secret["metadata"]["labels"]["app.kubernetes.io/managed-by"] == "ballast-operator"
    for name in ("default", "other"):
        assert await pool.get(SECRETS, names.WORKER_CERTIFICATE)
        await pool.delete(BUDGETS, name)

    async def gone() -> bool:
        return await pool.get(SECRETS, names.WORKER_CERTIFICATE) is None

    await pool.until(gone)


async def test_a_new_leader_goes_on_with_the_authority_that_is_there(bare: Rig):
    first = bare.start_operator()
    await bare.budget()
    await worker_of(bare)
    before = await authority(bare), await data(bare, names.WORKER_CERTIFICATE)
    await asyncio.to_thread(first.stop)
    bare.start_operator()
    [worker] = bare.workers.values()
    await obeyed(bare, worker, 2)
    assert (await authority(bare), await data(bare, names.WORKER_CERTIFICATE)) == before


async def test_an_authority_is_replaced_while_a_stream_goes_on(bare: Rig):
    """First announced, then, when every worker has said that it trusts it, used; no pod and no stream ends."""
    old = renewed(None, now=moment(**_AGED), seen=False)
    await put(bare, names.OPERATOR_CERTIFICATE, old.to_data())
    trusted = [old.certificates]  # a worker that has not seen the announcement holds it up

    def prepare(worker: FakeWorker) -> None:
        worker.authorities = lambda: hashlib.sha256(trusted[0]).hexdigest()

    bare.prepare = prepare
    operator = bare.start_operator()
    await bare.budget()
    await bare.model("minilm", residency="device")
    await bare.until_condition(MODELS, "minilm", "Ready", "True")
    worker = await worker_of(bare)
    uids = [pod["metadata"]["uid"] for pod in await bare.pods()]
    announced = await authority(bare)
    assert announced.signer == old.signer
    assert announced.successor is not None

    since = await bare.transition(MODELS, "minilm", "Ready")
    looks = secrets_read(operator)

    async def looked_often() -> bool:
        return secrets_read(operator) >= looks + 8  # two in each round

    await bare.until(looked_often)
    assert await authority(bare) == announced

    trusted[0] = bare.certificates["ca.crt"]

    async def used() -> bool:
        found = await authority(bare)
        return found.signer == announced.successor and found.predecessors == (old.signer.certificate,)

    await bare.until(used)

    async def reissued() -> bool:
        held = x509.load_pem_x509_certificate((await data(bare, names.WORKER_CERTIFICATE))["tls.crt"])
        return held.issuer == announced.successor.certificate.subject

    await bare.until(reissued)
    assert len(worker.calls("Watch")) == 1
    assert [pod["metadata"]["uid"] for pod in await bare.pods()] == uids
    assert await bare.transition(MODELS, "minilm", "Ready") == since
    await bare.model("second", residency="device")
    await bare.until_condition(MODELS, "second", "Ready", "True")
    assert len(worker.calls("Watch")) == 1

    await worker.stop()  # the next connection shows what the new authority signed, on both sides
    await bare.mount()
    await worker.start()
    await bare.model("third", residency="device")
    await bare.until_condition(MODELS, "third", "Ready", "True")


async def test_a_worker_whose_certificate_is_not_accepted_is_named_in_condition_and_event_and_heals(bare: Rig):
    foreign = files(Signer.new(moment()), names.TLS_WORKER_NAME)
    bare.shown = lambda: foreign
    bare.start_operator()
    await bare.budget()
    message = await bare.until_condition(BUDGETS, "default", "WorkersReady", "Unknown", "CertificateRefused")
    [name] = bare.workers
    assert f"worker {name}: what answers at 10.77.0." in message
    status = (await bare.get(BUDGETS, "default"))["status"]
    assert [worker["reason"] for worker in status["workers"]] == ["CertificateRefused"]

    async def told() -> bool:
        return any(reason == "CertificateRefused" and name in note for _, reason, note in await bare.events("default"))

    await bare.until(told)
    bare.shown = lambda: bare.certificates
    await bare.until_condition(BUDGETS, "default", "WorkersReady", "True")


async def test_a_secret_that_vanishes_or_is_spoilt_comes_back(pool: Rig):
    await pool.budget()
    await worker_of(pool)
    await pool.delete(SECRETS, names.WORKER_CERTIFICATE)

    async def back() -> bool:
        return set(await data(pool, names.WORKER_CERTIFICATE)) == {"ca.crt", "tls.crt", "tls.key"}

    await pool.until(back)
    good = await data(pool, names.WORKER_CERTIFICATE)
    spoilt = {"data": {"tls.crt": base64.b64encode(b"?").decode(), "extra": ""}}
    await pool.client.patch(SECRETS, pool.namespace, names.WORKER_CERTIFICATE, spoilt)

    async def repaired() -> bool:
        found = await data(pool, names.WORKER_CERTIFICATE)
        return set(found) == set(good) and b"BEGIN CERTIFICATE" in found["tls.crt"]

    await pool.until(repaired)


async def test_a_secret_of_somebody_else_is_left_alone_and_named(bare: Rig):
    await put(bare, names.WORKER_CERTIFICATE, {"mine": b"1"})
    bare.start_operator()
    await bare.budget()
    message = await bare.until_condition(BUDGETS, "default", "WorkersReady", "False", "SecretConflict")
    assert "Secret 'ballast-workers-tls' exists and was not made by Ballast" in message
    assert await bare.pods() == []
    assert await data(bare, names.WORKER_CERTIFICATE) == {"mine": b"1"}


async def test_an_authority_that_cannot_be_read_ends_the_operator_with_its_remedy(bare: Rig):
    await put(bare, names.OPERATOR_CERTIFICATE, {"ca.crt": b"?", "ca.key": b"?"})
    operator = bare.start_operator()
    await asyncio.to_thread(operator.join)
    assert isinstance(operator.error, PreflightError)
    assert "Secret 'ballast-operator-tls'" in str(operator.error)
    assert "damaged" in str(operator.error)
    assert "restore it, or delete it" in str(operator.error)
    operator.error = None


async def test_a_deleted_authority_is_made_anew_and_workers_are_heard_again(pool: Rig):
    await pool.budget()
    worker = await worker_of(pool)
    before = await authority(pool)
    await pool.delete(SECRETS, names.OPERATOR_CERTIFICATE)

    async def anew() -> bool:
        held = x509.load_pem_x509_certificate(pool.certificates["tls.crt"])
        found = await authority(pool)
        return found.signer != before.signer and held.issuer == found.signer.certificate.subject

    await pool.until(anew)
    await worker.stop()
    await worker.start()
    await pool.model("minilm", residency="device")
    await pool.until_condition(MODELS, "minilm", "Ready", "True")
    assert len(await pool.list(PODS)) == 1


async def test_a_lease_that_was_deleted_does_not_lower_the_epoch(bare: Rig):
    first = bare.start_operator()
    await bare.budget()
    worker = await worker_of(bare)
    worker.epoch = 40
    await obeyed(bare, worker, 41)
    await bare.delete(LEASES, "ballast-operator")

    async def lost() -> bool:
        return bool(first.lost)

    await bare.until(lost)
    await asyncio.to_thread(first.stop)
    bare.start_operator()
    await bare.model("minilm", residency="device")
    await bare.until_condition(MODELS, "minilm", "Ready", "True")
    assert worker.epoch == 42
