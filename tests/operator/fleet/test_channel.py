# SPDX-License-Identifier: Apache-2.0
"""Connections with mutual TLS: whom the operator believes, what it says of the others, and what it shows itself."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncIterator, Callable

import grpc
import pytest
from helpers.control_tls import certificate_of, files, moment
from helpers.fake_worker import FakeWorker

from ballast_contract import names
from ballast_contract.reasons import Reason
from ballast_operator.fleet.authority import Identity, Signer
from ballast_operator.fleet.channel import Member, channel
from ballast_operator.fleet.fleet import Fleet, Notice


async def until(what: Callable[[], object]) -> None:
    deadline = time.monotonic() + 15
    while not what():
        assert time.monotonic() < deadline, "it did not come about within 15 s"
        await asyncio.sleep(0.01)


class Pair:
    """A worker and the operator's side of it, each with what it shows and trusts."""

    def __init__(self) -> None:
        self.signer = Signer.new(moment())
        self.worker = FakeWorker("w")
        self.mounted = files(self.signer, names.TLS_WORKER_NAME)
        self.identity = self.identity_by(self.signer)
        self.notices: list[Notice] = []
        self.dialled: list[Identity] = []

    def identity_by(self, signer: Signer, *, trusts: bytes = b"") -> Identity:
        own = signer.issue(names.TLS_OPERATOR_NAME, client=True, now=moment())
        return Identity(trusts or certificate_of(signer), own)

    def configuration(self) -> grpc.ServerCertificateConfiguration:
        held = self.mounted
        return grpc.ssl_server_certificate_configuration([(held["tls.key"], held["tls.crt"])], held["ca.crt"])

    async def start(self) -> None:
        await self.worker.start(grpc.dynamic_ssl_server_credentials(self.configuration(), self.configuration, True))
        self.fleet = Fleet(
            epoch=lambda: 1,
            identity=lambda: self.identity,
            notify=self.notices.append,
            on_epoch=lambda epoch: epoch < 1_000_000,
            dial=self.dial,
            heartbeat_limit=3.0,
        )
        self.running = asyncio.create_task(self.fleet.run())
        self.link = self.fleet.join(Member("ns", "default", "w", "uid", "127.0.0.1"))

    def dial(self, member: Member, identity: Identity) -> grpc.aio.Channel:
        self.dialled.append(identity)
        return channel(dataclasses.replace(member, port=self.worker.port), identity)

    async def stop(self) -> None:
        self.running.cancel()
        await asyncio.gather(self.running, return_exceptions=True)
        await self.worker.stop()


@pytest.fixture
async def pair() -> AsyncIterator[Pair]:
    found = Pair()
    yield found
    await found.stop()


async def test_a_worker_with_the_name_of_workers_is_heard_whatever_its_address(pair: Pair):
    await pair.start()
    await until(lambda: pair.link.view.known)
    assert pair.link.view.obstacle is None


@pytest.mark.parametrize(
    ("mounted", "words"),
    [
        (lambda _: files(Signer.new(moment()), names.TLS_WORKER_NAME), "CERTIFICATE_VERIFY_FAILED"),
        (lambda signer: files(signer, names.TLS_WORKER_NAME, at=moment(days=31)), "certificate has expired"),
        (lambda signer: files(signer, "someone.else"), "Hostname Verification Check failed"),
        (lambda signer: files(signer, names.TLS_WORKER_NAME, client=True), "CERTIFICATE_VERIFY_FAILED"),
    ],
    ids=["of another authority", "expired", "of another name", "not for being connected to"],
)
async def test_another_certificate_is_named_and_told_of_once_and_heals(pair: Pair, mounted, words: str):
    pair.mounted = mounted(pair.signer)
    await pair.start()
    await until(lambda: pair.link.view.obstacle)
    assert pair.link.view.obstacle.reason is Reason.CERTIFICATE_REFUSED
    assert words in pair.link.view.obstacle.message
    assert "at 127.0.0.1:8003" in pair.link.view.obstacle.message
    assert [notice.worker for notice in pair.notices] == [True]
    assert not pair.link.view.known
    pair.mounted = files(pair.signer, names.TLS_WORKER_NAME)
    await until(lambda: pair.link.view.known)
    assert pair.link.view.obstacle is None


async def test_a_worker_that_does_not_believe_the_operator_is_told_of(pair: Pair):
    pair.identity = pair.identity_by(Signer.new(moment()), trusts=certificate_of(pair.signer))
    await pair.start()
    await until(lambda: pair.link.view.obstacle)
    assert pair.link.view.obstacle.reason is Reason.CERTIFICATE_REFUSED
    assert "the log of its pod says why" in pair.link.view.obstacle.message


async def test_a_worker_that_is_not_there_is_no_matter_of_certificates(pair: Pair):
    await pair.start()
    await until(lambda: pair.link.view.known)
    await pair.worker.stop()
    await until(lambda: pair.link.view.stale(pair.fleet.now()))
    assert pair.link.view.obstacle is None


async def test_plain_text_is_not_spoken(pair: Pair):
    await pair.worker.start()
    pair.worker.start = lambda _: asyncio.sleep(0)  # it stays as it is
    await pair.start()
    await until(lambda: pair.link.view.obstacle)
    assert not pair.worker.log


async def test_a_new_identity_leaves_the_stream_alone_and_is_shown_by_the_next_connection(pair: Pair):
    await pair.start()
    await until(lambda: pair.link.view.known)
    new = Signer.new(moment())
    both = certificate_of(pair.signer) + certificate_of(new)
    pair.identity = pair.identity_by(new, trusts=both)
    heard = pair.link.view.heard_at
    await until(lambda: pair.link.view.heard_at > heard)
    assert len(pair.worker.calls("Watch")) == len(pair.dialled) == 1
    await pair.worker.stop()
    pair.mounted = files(new, names.TLS_WORKER_NAME)
    await pair.worker.start()
    await until(lambda: len(pair.worker.calls("Watch")) > 1)
    assert pair.dialled[-1] is pair.identity
    await until(lambda: not pair.link.view.stale(pair.fleet.now()))


async def test_an_epoch_far_above_ours_is_named_and_not_followed(pair: Pair):
    pair.worker.epoch = 2**40
    await pair.start()
    await until(lambda: pair.link.view.obstacle)
    assert pair.link.view.obstacle.reason is Reason.EPOCH_REFUSED
    assert f"it has seen epoch {2**40}" in pair.link.view.obstacle.message
    assert "delete its pod" in pair.link.view.obstacle.message
    first = pair.link.view.heard_at
    await until(lambda: pair.link.view.heard_at > first + 1)
    assert len([notice for notice in pair.notices if notice.worker]) == 2  # that, and its first state
