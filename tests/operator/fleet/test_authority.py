# SPDX-License-Identifier: Apache-2.0
"""The authority of the control channel: who signs when, and what is kept."""

from __future__ import annotations

import datetime as dt

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID
from hypothesis import given, settings
from hypothesis import strategies as st

from ballast_operator.fleet.authority import (
    ANNOUNCE_BEFORE,
    AUTHORITY_LIFE,
    CERTIFICATE_LIFE,
    RENEW_BEFORE,
    SWITCH_BEFORE,
    Authority,
    AuthorityError,
    Signer,
    renewed,
)

START = dt.datetime(2026, 1, 1, tzinfo=dt.UTC)
DAY = dt.timedelta(days=1)
ANNOUNCED = START + AUTHORITY_LIFE - ANNOUNCE_BEFORE + DAY


def at(moment: dt.datetime, held: Authority | None, *, seen: bool = True) -> Authority:
    return renewed(held, now=moment, seen=seen)


@pytest.fixture
def first() -> Authority:
    return at(START, None)


@pytest.fixture
def announced(first) -> Authority:
    return at(ANNOUNCED, first)


def names(certificate: x509.Certificate) -> list[str]:
    return certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value.get_values_for_type(
        x509.DNSName
    )


def test_a_certificate_has_the_name_the_purpose_and_the_life_that_it_was_issued_for(first):
    for client, purpose in ((True, ExtendedKeyUsageOID.CLIENT_AUTH), (False, ExtendedKeyUsageOID.SERVER_AUTH)):
        pair = first.signer.issue("x.ballast.dev", client=client, now=START)
        found = x509.load_pem_x509_certificate(pair.certificate)
        assert names(found) == ["x.ballast.dev"]
        assert list(found.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value) == [purpose]
        assert found.not_valid_after_utc == START + CERTIFICATE_LIFE
        assert found.not_valid_before_utc == START - dt.timedelta(hours=1)
        assert isinstance(found.public_key(), ec.EllipticCurvePublicKey)
        found.verify_directly_issued_by(first.signer.certificate)


def test_nothing_changes_while_nothing_has_to(first):
    assert at(START + DAY, first) is first
    assert first.successor is None


def test_a_successor_is_announced_in_time_and_believed_before_it_signs(first, announced):
    assert announced.signer == first.signer
    assert announced.successor is not None
    assert x509.load_pem_x509_certificates(announced.certificates) == [
        announced.signer.certificate,
        announced.successor.certificate,
    ]


def test_a_successor_waits_until_everybody_has_seen_it(announced):
    assert at(ANNOUNCED + DAY, announced, seen=False) is announced
    switched = at(ANNOUNCED + DAY, announced)
    assert switched.signer == announced.successor
    assert switched.successor is None
    assert switched.predecessors == (announced.signer.certificate,)


def test_a_successor_takes_over_in_time_although_not_everybody_has_seen_it(announced):
    late = START + AUTHORITY_LIFE - SWITCH_BEFORE + DAY
    assert at(late, announced, seen=False).signer == announced.successor


def test_a_predecessor_is_believed_until_it_has_run_out(announced):
    switched = at(ANNOUNCED + DAY, announced)
    assert at(START + AUTHORITY_LIFE - DAY, switched) is switched
    assert at(START + AUTHORITY_LIFE + DAY, switched).predecessors == ()


def test_an_authority_that_nobody_looked_after_is_made_anew(first, announced):
    years = START + 5 * AUTHORITY_LIFE
    for held in (first, announced):
        found = at(years, held)
        assert found.signer.left(years) == AUTHORITY_LIFE
        assert (found.successor, found.predecessors) == (None, ())


def test_a_certificate_is_due_when_another_signs_when_it_is_soon_over_and_when_it_is_none(first, announced):
    pair = first.signer.issue("x", client=False, now=START)
    assert not first.due(pair.certificate, START)
    assert not first.due(pair.certificate, START + CERTIFICATE_LIFE - RENEW_BEFORE)
    assert first.due(pair.certificate, START + CERTIFICATE_LIFE - RENEW_BEFORE + DAY)
    assert at(ANNOUNCED, announced).due(pair.certificate, START)
    assert first.due(b"", START)


def test_a_certificate_does_not_outlive_its_signer_and_is_not_issued_again_and_again_at_its_end(first):
    end = START + AUTHORITY_LIFE
    pair = first.signer.issue("x", client=False, now=end - DAY)
    assert x509.load_pem_x509_certificate(pair.certificate).not_valid_after_utc == end
    assert not first.due(pair.certificate, end - DAY)


def test_what_is_kept_is_what_is_read(first, announced):
    for held in (first, announced, at(ANNOUNCED + DAY, announced)):
        assert Authority.from_data(held.to_data()) == held


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ca.crt": None}, "ca.crt is missing"),
        ({"ca.key": None}, "ca.key is missing"),
        ({"ca.crt": b"?"}, "ca.crt or ca.key is damaged"),
        ({"ca.key": b"?"}, "ca.crt or ca.key is damaged"),
        ({"ca.key": Signer.new(START).issue("x", client=True, now=START).key}, "ca.key does not belong to ca.crt"),
        ({"previous.crt": b"?"}, "previous.crt is no certificate"),
    ],
)
def test_what_cannot_be_used_is_named(first, change, message):
    data = {k: v for k, v in {**first.to_data(), **change}.items() if v is not None}
    with pytest.raises(AuthorityError, match=message):
        Authority.from_data(data)


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), min_size=1, max_size=40))
def test_who_held_the_last_announcement_is_never_shown_a_certificate_that_he_does_not_believe(steps):
    """Of two looks in a row at most 40 days apart: what signs after the second was believed after the first."""
    now, held = START, at(START, None)
    for days, seen in steps:
        before = held
        now += days * DAY
        held = at(now, held, seen=seen)
        assert held.signer.left(now) > dt.timedelta()
        assert held.signer.certificate in x509.load_pem_x509_certificates(before.certificates)
