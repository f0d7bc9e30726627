"""Proof: a killed server leaves one event for each call that it acknowledged, and none for a write it did not make."""

from tests.proofs.killing import Said, contradictions, kill_again_and_again
from tests.servers import Cluster, RunningServer
from tests.store.owner import change

KILLS = 4
CALLS_BETWEEN = 40


def test_what_was_acknowledged_before_a_kill_is_recorded_once(cluster: Cluster, server: RunningServer) -> None:
    load = kill_again_and_again(cluster, server, KILLS, CALLS_BETWEEN)
    assert sum(bool(said.decision_id) for said in load.said) >= KILLS * CALLS_BETWEEN
    assert any(not said.decision_id for said in load.said)
    assert contradictions(cluster, load) == []
    # And each kind of contradiction would be found.
    acknowledged = next(said for said in load.said if said.decision_id)
    load.said.append(Said(acknowledged.tenant, "never-sent", acknowledged.decision_id))
    assert "the acknowledged call never-sent has no event" in contradictions(cluster, load)
    load.said.pop()
    change(cluster, "DELETE FROM audit_events WHERE event_id = %s", acknowledged.decision_id)
    assert f"the acknowledged call {acknowledged.call_id} has no event" in contradictions(cluster, load)
