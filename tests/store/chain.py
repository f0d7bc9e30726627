"""A tenant's audit chain, checked by the letter of its description and with none of the code that writes it."""

import hashlib
import json
from datetime import datetime
from typing import Any

from tests.servers import Cluster
from tests.store.owner import rows

_EVENTS = (
    "SELECT sequence, previous_hash, hash, event, event_id::text, occurred_at, call_id, verb, outcome, agent, name,"
    " actor, winner_layer, version FROM audit_events WHERE tenant_id = %s ORDER BY sequence"
)


def events(cluster: Cluster, tenant: str) -> list[dict[str, Any]]:
    """Return the tenant's events as they are stored, oldest first."""
    texts = rows(cluster, "SELECT event FROM audit_events WHERE tenant_id = %s ORDER BY sequence", tenant)
    return [json.loads(text) for (text,) in texts]


def faults(cluster: Cluster, tenant: str) -> list[str]:
    """Return all that is wrong with the tenant's chain: gaps, wrong hashes, loose links, columns that differ."""
    found = []
    previous = bytes(32)
    stored = rows(cluster, _EVENTS, tenant)
    for place, (sequence, before, digest, text, *columns) in enumerate(stored, start=1):
        if sequence != place:
            found.append(f"{place}: has sequence {sequence}")
        if before != previous:
            found.append(f"{place}: does not follow the event before it")
        if digest != hashlib.sha256(before + sequence.to_bytes(8, "big") + text.encode()).digest():
            found.append(f"{place}: its hash is not that of its text")
        if columns != _columns(text) or json.loads(text)["tenant"] != tenant:
            found.append(f"{place}: its columns say {columns}, its text {_columns(text)}")
        previous = digest
    head = rows(cluster, "SELECT sequence, hash FROM chain_heads WHERE tenant_id = %s", tenant)
    if head != [(len(stored), previous)]:
        found.append("the head is not the last event")
    return found


def _columns(text: str) -> list[Any]:
    event = json.loads(text)
    winner = event.get("winner", {})
    return [
        event["id"],
        datetime.fromisoformat(event["time"]),
        event["call_id"],
        event["verb"],
        event["outcome"],
        *(event.get(name, "") for name in ("agent", "name", "actor")),
        winner.get("layer", ""),
        winner.get("version"),
    ]
