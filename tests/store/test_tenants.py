"""What a tenant's row counts: its changes in each minute of the clock, and its bytes."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import pytest

from substrate.domain.errors import QuotaExceeded, TenantNotFound
from substrate.domain.names import TenantId
from substrate.domain.quotas import Quotas
from substrate.store import tenants
from substrate.store.session import Transaction
from tests.servers import Cluster, TestTenant
from tests.store.owner import value

MINUTE = timedelta(minutes=1)
NOON = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)


@contextmanager
def _writing(tenant: TestTenant) -> Iterator[Transaction]:
    with tenant.server.database.tenant(TenantId(tenant.name)) as connection:
        yield connection


def _bump(tenant: TestTenant, now: datetime | None) -> int:
    with _writing(tenant) as connection:
        return tenants.bump(connection, TenantId(tenant.name), now)


def _limit(tenant: TestTenant, writes: int) -> None:
    with tenant.server.database.operator() as connection:
        tenants.set_quotas(connection, TenantId(tenant.name), Quotas(writes_per_minute=writes))


def _refused(tenant: TestTenant, now: datetime) -> dict[str, str]:
    with pytest.raises(QuotaExceeded) as refused:
        _bump(tenant, now)
    return dict(refused.value.metadata)


def test_writes_are_counted_in_each_minute_of_the_clock(cluster: Cluster, tenant: TestTenant) -> None:
    _limit(tenant, 2)
    first = _bump(tenant, NOON + timedelta(seconds=30))
    assert _bump(tenant, NOON + timedelta(seconds=59)) == first + 1
    for second, wait in ((59, "1"), (59.999, "1"), (30.5, "30"), (0, "60")):
        assert _refused(tenant, NOON + timedelta(seconds=second)) == {
            "quota": "writes_per_minute",
            "limit": "2",
            "retry_after_seconds": wait,
        }
    counted = "SELECT (catalog_revision, writes_counted)::text FROM tenants WHERE tenant_id = %s"
    assert value(cluster, counted, tenant.name) == f"({first + 1},2)"
    assert _bump(tenant, NOON + MINUTE) == first + 2
    assert _bump(tenant, NOON + MINUTE) == first + 3
    assert _refused(tenant, NOON + MINUTE)["retry_after_seconds"] == "60"


def _failing_write(tenant: TestTenant) -> None:
    with _writing(tenant) as connection:
        tenants.bump(connection, TenantId(tenant.name), NOON)
        raise ZeroDivisionError


def test_a_write_that_is_rolled_back_was_none(tenant: TestTenant) -> None:
    _limit(tenant, 1)
    for _ in range(3):
        with pytest.raises(ZeroDivisionError):
            _failing_write(tenant)
    _bump(tenant, NOON)
    assert _refused(tenant, NOON)["limit"] == "1"


def test_a_clock_that_is_behind_counts_in_the_minute_that_another_has_begun(tenant: TestTenant) -> None:
    _limit(tenant, 2)
    for _ in range(2):
        _bump(tenant, NOON)
    behind = NOON - timedelta(seconds=1)
    assert _refused(tenant, behind)["retry_after_seconds"] == "61"
    assert _refused(tenant, NOON)["retry_after_seconds"] == "60"


def test_a_clock_that_is_far_ahead_does_not_stop_the_writes_of_others(tenant: TestTenant) -> None:
    _limit(tenant, 2)
    for _ in range(2):
        _bump(tenant, NOON + timedelta(hours=1))
    _bump(tenant, NOON)
    _bump(tenant, NOON)
    assert _refused(tenant, NOON)["retry_after_seconds"] == "60"


def test_operators_changes_are_not_the_tenants_writes(cluster: Cluster, tenant: TestTenant) -> None:
    _limit(tenant, 0)
    before = _bump(tenant, None)
    assert _bump(tenant, None) == before + 1
    # Waiting does not help a tenant that may not write at all.
    assert _refused(tenant, NOON) == {"quota": "writes_per_minute", "limit": "0"}
    assert value(cluster, "SELECT writes_minute FROM tenants WHERE tenant_id = %s", tenant.name) is None


@pytest.mark.parametrize(
    ("seconds", "counted"), [(0, 3), (59.9, 3), (60, 0), (3600, 0), (-1, 3)], ids=["then", "late", "next", "later", "-"]
)
def test_what_was_written_in_the_present_minute(tenant: TestTenant, seconds: float, counted: int) -> None:
    for _ in range(3):
        _bump(tenant, NOON + timedelta(seconds=5))
    with _writing(tenant) as connection:
        found = tenants.get(connection, TenantId(tenant.name))
    assert found is not None
    assert found.writes_at(NOON + timedelta(seconds=seconds)) == counted


def test_a_tenant_that_never_wrote_has_written_nothing(tenant: TestTenant) -> None:
    with _writing(tenant) as connection:
        found = tenants.get(connection, TenantId(tenant.name))
        assert found is not None
        assert (found.writes_at(NOON), found.quotas, found.suspended_at) == (0, Quotas(), None)
        # One tenant's transaction sees no other.
        assert tenants.get(connection, TenantId("platform")) is None


def test_bytes_are_summed_up(tenant: TestTenant) -> None:
    with _writing(tenant) as connection:
        before = tenants.add_bytes(connection, TenantId(tenant.name), 0)
        assert tenants.add_bytes(connection, TenantId(tenant.name), 5) == before + 5
        assert tenants.add_bytes(connection, TenantId(tenant.name), 2**40) == before + 5 + 2**40
        with pytest.raises(TenantNotFound):
            tenants.add_bytes(connection, TenantId("platform"), 1)
