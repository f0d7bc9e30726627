"""A server that is killed again and again under load, and what its database must then hold; a script runs it at length.

``python -m tests.proofs.killing 50`` kills a server fifty times.
"""

import itertools
import signal
import sys
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from substrate.domain.identity import Role
from substrate.rpc.client import CallFailed, Client
from tests.processes import serving
from tests.servers import Cluster, RunningServer, running_cluster, running_server
from tests.skills import skill_md
from tests.store.chain import faults
from tests.store.owner import rows

READERS = 6
WRITERS = 2
TENANTS = 3
SECONDS = 30.0


@dataclass(frozen=True)
class Said:
    """A call that was sent: `decision_id` is empty unless the server acknowledged it, by an answer or a denial."""

    tenant: str
    call_id: str
    decision_id: str


@dataclass
class Load:
    """Calls to a server that may be gone at any moment."""

    said: list[Said] = field(default_factory=list)
    acknowledged: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    numbers: Any = field(default_factory=lambda: itertools.count(1))

    def run(self, client: Client, tenant: str, calls: Callable[[], tuple[str, dict[str, Any]]]) -> None:
        """Call until the connection is lost."""
        bare = client._metadata
        while True:
            call_id = uuid.uuid4().hex
            client._metadata = (*bare, ("x-call-id", call_id))  # type: ignore[assignment]  # One more pair than it was made with.
            method, fields = calls()
            try:
                decision_id = client.call(method, **fields).decision_id
            except CallFailed as error:
                decision_id = error.decision_id
                if not decision_id and error.reason not in ("ETAG_MISMATCH", "ALREADY_EXISTS"):
                    self.said.append(Said(tenant, call_id, ""))
                    return
            self.said.append(Said(tenant, call_id, decision_id))
            self.acknowledged.release()

    def reads(self) -> tuple[str, dict[str, Any]]:
        """Return the next call of a runtime: an invocation, a denial or a file."""
        match next(self.numbers) % 3:
            case 0:
                return "SkillService.InvokeSkill", {"agent": "doc-manager", "name": "doc/query"}
            case 1:
                return "SkillService.InvokeSkill", {"agent": "doc-manager", "name": "own/x"}
            case _:
                path = "references/review-checklist.md"
                return "SkillService.ReadSkillFile", {"agent": "doc-manager", "name": "doc/chunk-review", "path": path}

    def writes(self) -> tuple[str, dict[str, Any]]:
        """Return the next call of an author: a new SkillDef."""
        name = f"s{next(self.numbers)}"
        return "SkillDefService.CreateSkillDef", {"name": f"own/{name}", "source": skill_md(name)}


def kill_again_and_again(cluster: Cluster, keeper: RunningServer, times: int, calls_between: int) -> Load:
    """Load a server with calls to several tenants and kill it after so many were acknowledged, `times` times."""
    load = Load()
    names = [keeper.tenant().name for _ in range(TENANTS)]
    keys = {name: (keeper.key(name, Role.RUNTIME), keeper.key(name, Role.AUTHOR)) for name in names}
    for _ in range(times):
        with serving("--database-url", cluster.login_url) as server:
            clients, threads = [], []
            for number in range(READERS + WRITERS):
                name = names[number % TENANTS]
                reads = number < READERS
                client = Client(server.address, keys[name][0 if reads else 1], timeout=SECONDS)
                clients.append(client)
                calls = load.reads if reads else load.writes
                threads.append(threading.Thread(target=load.run, args=(client, name, calls)))
            for thread in threads:
                thread.start()
            for _ in range(calls_between):
                assert load.acknowledged.acquire(timeout=SECONDS)
            server.stop(signal.SIGKILL)
            for thread in threads:
                thread.join()
            for client in clients:
                client.close()
    return load


def contradictions(cluster: Cluster, load: Load) -> list[str]:
    """Return all in which the database and what the callers were told contradict each other."""
    found = []
    tenants = sorted({said.tenant for said in load.said})
    stored = rows(
        cluster,
        "SELECT tenant_id, event_id::text, call_id, verb, outcome, name FROM audit_events WHERE tenant_id = ANY(%s)",
        tenants,
    )
    by_id = Counter(event_id for _, event_id, *_ in stored)
    by_call = Counter(call_id for _, _, call_id, *_ in stored)
    known = {(tenant, event_id, call_id) for tenant, event_id, call_id, *_ in stored}
    found += [f"the event {event_id} is there {count} times" for event_id, count in by_id.items() if count > 1]
    for said in load.said:
        if said.decision_id and (said.tenant, said.decision_id, said.call_id) not in known:
            found.append(f"the acknowledged call {said.call_id} has no event")
        if by_call[said.call_id] > 1:
            found.append(f"the call {said.call_id} has {by_call[said.call_id]} events")
    made = [(tenant, name) for tenant, _, _, verb, outcome, name in stored if verb == "create" and outcome == "ALLOWED"]
    there = rows(cluster, "SELECT tenant_id, name FROM skill_def_versions WHERE tenant_id = ANY(%s)", tenants)
    if sorted(made) != sorted(there):
        found.append(f"events and SkillDefs differ: {sorted(set(made) ^ set(there))}")
    return found + [f"{tenant}: {fault}" for tenant in tenants for fault in faults(cluster, tenant)]


def main() -> int:
    """Kill a server as often as the command line says."""
    times = int(sys.argv[1]) if len(sys.argv) > 1 else 50
    with running_cluster() as cluster, running_server(cluster) as keeper:
        load = kill_again_and_again(cluster, keeper, times, 100)
        acknowledged = sum(bool(said.decision_id) for said in load.said)
        print(f"{times} kills, {len(load.said)} calls, {acknowledged} acknowledged")  # noqa: T201 - its result.
        problems = contradictions(cluster, load)
        print("\n".join(problems) or "Nothing contradicts.")  # noqa: T201 - its result.
        return int(bool(problems))


if __name__ == "__main__":
    sys.exit(main())
