from dataclasses import asdict, fields, replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from substrate.api.v1 import tenants_pb2
from substrate.domain.errors import InvalidArgument, QuotaExceeded
from substrate.domain.quotas import LARGEST, QUOTA_NAMES, Quotas, quotas_from_plain, quotas_to_plain, require

DEFAULTS = {
    "skills": 10_000,
    "versions_per_skill": 1_000,
    "bytes": 268_435_456,
    "agents": 1_000,
    "allowlist_entries": 200,
    "writes_per_minute": 1_200,
    "calls_in_flight": 128,
}


def test_what_is_absent_is_the_documented_default() -> None:
    assert quotas_to_plain(quotas_from_plain({})) == DEFAULTS
    assert quotas_to_plain(quotas_from_plain({"skills": 7})) == DEFAULTS | {"skills": 7}


def test_there_are_the_quotas_of_the_api_and_no_others() -> None:
    assert list(QUOTA_NAMES) == [field.name for field in tenants_pb2.Quotas.DESCRIPTOR.fields]


@given(st.fixed_dictionaries({name: st.integers(1, getattr(LARGEST, name)) for name in DEFAULTS}))
def test_quotas_read_back_as_they_were_written(plain: dict[str, int]) -> None:
    quotas = quotas_from_plain(plain)
    assert asdict(quotas) == plain
    assert quotas_to_plain(quotas) == plain


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_quota_is_a_whole_number_up_to_the_largest(name: str) -> None:
    largest = getattr(LARGEST, name)
    assert getattr(quotas_from_plain({name: largest}), name) == largest
    for wrong in (largest + 1, -1, -(2**63), 1.0, "1", True, None):
        with pytest.raises(InvalidArgument) as refused:
            quotas_from_plain({name: wrong})
        assert refused.value.violations[0].field == f"quotas.{name}"
        assert str(largest) in refused.value.message


def test_a_quota_of_nothing_stops_all_but_calls() -> None:
    nothing = {field.name: 0 for field in fields(Quotas) if field.name != "calls_in_flight"}
    assert quotas_from_plain(nothing) == replace(Quotas(**nothing), calls_in_flight=128)
    with pytest.raises(InvalidArgument, match="from 1 to 10000"):
        quotas_from_plain({"calls_in_flight": 0})


@pytest.mark.parametrize("name", ["skill", "Skills", "", "writes_per_hour"])
def test_an_unknown_quota_is_refused_with_those_there_are(name: str) -> None:
    with pytest.raises(InvalidArgument) as refused:
        quotas_from_plain({"skills": 1, name: 1})
    assert refused.value.violations[0].field == f"quotas.{name}"
    assert all(known in refused.value.message for known in DEFAULTS)


@pytest.mark.parametrize("name", DEFAULTS)
def test_a_quota_holds_up_to_its_limit_and_says_what_to_do_beyond(name: str) -> None:
    require(name, 5, 5)
    require(name, 5, 0)
    with pytest.raises(QuotaExceeded) as refused:
        require(name, 5, 6)
    assert refused.value.metadata == {"quota": name, "limit": "5"}
    assert "may have 5 " in refused.value.message
    assert "Ask an operator" in refused.value.message
    with pytest.raises(QuotaExceeded) as refused:
        require(name, 0, 1, retry_after=42)
    assert refused.value.metadata == {"quota": name, "limit": "0", "retry_after_seconds": "42"}
    assert "Try again in 42 s" in refused.value.message
