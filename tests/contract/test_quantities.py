# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ballast_contract import quantities


@pytest.mark.parametrize(
    ("text", "size"),
    [("0", 0), ("17", 17), ("64Ki", 65536), ("1536Mi", 1536 << 20), ("60Gi", 60 << 30), ("2Ti", 2 << 40)],
)
def test_api_sizes_are_digits_and_a_binary_unit(text, size):
    assert quantities.parse_api(text) == size


@pytest.mark.parametrize("text", ["60G", "60gi", "1.5Gi", "-1", "", "Gi", "60 Gi", "60GiB", "1e3", "٣Gi"])
def test_other_spellings_of_an_api_size_are_refused_with_the_right_one(text):
    with pytest.raises(quantities.QuantityError, match="as in 1536Mi or 60Gi"):
        quantities.parse_api(text)


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("48g", 48 << 30),
        ("1.5t", 3 << 39),
        ("512M", 512 << 20),
        ("5GB", 5 << 30),
        ("5GiB", 5 << 30),
        ("7", 7),
        ("7b", 7),
        ("2Ki", 2048),
    ],
)
def test_worker_sizes_are_always_binary_in_any_case(text, size):
    assert quantities.parse_worker(text) == size


@pytest.mark.parametrize("text", ["", "g", "1.g", "5 parsecs", "0x10", "-5g", "5gg"])
def test_text_that_is_no_worker_size_is_refused(text):
    with pytest.raises(quantities.QuantityError, match="is not a size"):
        quantities.parse_worker(text)


@pytest.mark.parametrize("text", ["1025t", "1048577g", "9" * 400, "9" * 400 + ".9t"])
def test_more_than_the_largest_size_is_refused_with_the_limit(text):
    with pytest.raises(quantities.QuantityError, match="at most 1024t"):
        quantities.parse_worker(text)


@given(st.integers(min_value=0, max_value=1 << 50))
def test_a_formatted_size_reads_back_to_the_byte(size):
    assert quantities.parse_api(quantities.format_api(size)) == size


@given(st.integers(min_value=0, max_value=1 << 50))
def test_a_size_rounded_up_for_a_person_is_at_least_the_size(size):
    rounded = quantities.parse_api(quantities.ceil_api(size))
    assert size <= rounded < size + (1 << 20)


@pytest.mark.parametrize("text", ["90", "101%", "-1%", "1.5%", "%", "007%"])
def test_a_percentage_is_whole_and_at_most_100(text):
    with pytest.raises(quantities.QuantityError, match="0% to 100%"):
        quantities.parse_percent(text)


@pytest.mark.parametrize(
    ("size", "text"), [(0, "0 B"), (1023, "1023 B"), (91226112, "87 MiB"), (1 << 30, "1 GiB"), (3 << 39, "1.5 TiB")]
)
def test_sizes_for_people_have_three_digits(size, text):
    assert quantities.human(size) == text
