"""Tenant ids that mean something elsewhere: to SQL, to YAML, to JSON."""

import pytest

from substrate.rpc.client import CallFailed
from tests.servers import Cluster, RunningServer
from tests.store.chain import events, faults


@pytest.mark.parametrize("name", ["null", "true", "default", "public", "1", "0"])
def test_what_is_answered_is_on_record_whatever_the_tenant_is_called(
    server: RunningServer, cluster: Cluster, name: str
) -> None:
    tenant = server.tenant(name)
    before = len(events(cluster, name))
    tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/query")
    with pytest.raises(CallFailed):
        tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="writing/style-check")
    assert [event["outcome"] for event in events(cluster, name)][before:] == ["ALLOWED", "REFUSED"]
    assert not faults(cluster, name)
