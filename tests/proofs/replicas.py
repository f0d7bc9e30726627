"""One tenant on several servers: what was changed through one of them, and what its agent then meets on another."""

import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from substrate.domain.identity import Role
from substrate.rpc.client import CallFailed, Client
from substrate.services import decisions
from substrate.store.chain_writer import Entry
from tests.servers import RunningServer, open_clients
from tests.skills import skill_md

NAME = "own/skill"
AGENT = "worker"
SECONDS = 30.0
"""How long a call may take on a busy machine."""


def leave_unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the servers of this process: what they have in memory is taken for current."""

    def unchecked(tenant: Any, _: bool, *rest: Any) -> Entry:  # noqa: FBT001 - called as the class is.
        return Entry(tenant, False, *rest)  # noqa: FBT003 - as above.

    monkeypatch.setattr(decisions, "Entry", unchecked)


@dataclass
class Replicated:
    """A tenant with a client of each role on every server, and the state of its agent and its skill as acknowledged."""

    tenant: str
    addresses: Sequence[str]
    authors: Sequence[Client]
    runtimes: Sequence[Client]
    latest: int = 0
    active: int = 0
    staging: int = 0
    retired: bool = False
    disabled: bool = False
    allowed: bool = True
    pin: str = ""
    etag: str = ""
    agent_etag: str = ""
    others: list[str] = field(default_factory=list)

    @classmethod
    def on(cls, server: RunningServer, addresses: Sequence[str], timeout: float = SECONDS) -> "Replicated":
        """Make a tenant by way of `server`, with a skill and an agent, that the servers at `addresses` serve."""
        name = server.tenant().name
        author, runtime = (server.key(name, role) for role in (Role.AUTHOR, Role.RUNTIME))
        return cls(name, addresses, clients(addresses, author), clients(addresses, runtime, timeout)).begun()

    def begun(self) -> "Replicated":
        """Define the agent and the skill, with two versions of which the first is in effect."""
        author = self.authors[0]
        source = _source(1)
        made = author.call("SkillDefService.CreateSkillDef", name=NAME, source=source)
        self.latest = self.active = 1
        self.etag = made.skill_def.etag
        self.fork(author, promote=False)
        self.put(author)
        self.label(author, 1)
        return self

    def fork(self, author: Client, *, promote: bool) -> None:
        """Add a version."""
        source = _source(self.latest + 1)
        self._skill(author, "ForkSkillDef", source=source, promote=promote, **{"from": "v1"})
        self.latest += 1
        self.active = self.latest if promote else self.active

    def promote(self, author: Client, version: int) -> None:
        self._skill(author, "PromoteSkillDef", version=version)
        self.active = version

    def retire(self, author: Client, *, retired: bool) -> None:
        self._skill(author, "RetireSkillDef", retired=retired)
        self.retired = retired

    def disable(self, author: Client, *, disabled: bool) -> None:
        self._skill(author, "SetSkillDisabled", disabled=disabled)
        self.disabled = disabled

    def label(self, author: Client, version: int) -> None:
        """Let the label `staging` point at `version`."""
        self._skill(author, "SetLabel", label="staging", version=version)
        self.staging = version

    def create(self, author: Client) -> None:
        """Add one more skill."""
        name = f"own/n{len(self.others)}"
        author.call("SkillDefService.CreateSkillDef", name=name, source=skill_md(name[4:], f"{name}\n"))
        self.others.append(name)

    def put(self, author: Client, *, allowed: bool | None = None, pin: str | None = None) -> None:
        """Define the agent anew, with another allowlist or pin."""
        now_allowed = self.allowed if allowed is None else allowed
        now_pin = self.pin if pin is None else pin
        agent = {
            "name": AGENT,
            "skills": ["own/*"] if now_allowed else ["own/*", f"-{NAME}"],
            "pins": {NAME: now_pin} if now_pin else {},
        }
        made = author.call("AgentService.PutAgent", agent=agent, etag=self.agent_etag or None)
        self.agent_etag, self.allowed, self.pin = made.agent.etag, now_allowed, now_pin

    def delete(self, author: Client) -> None:
        """Remove the agent."""
        author.call("AgentService.DeleteAgent", name=AGENT, etag=self.agent_etag)
        self.agent_etag = ""

    def change(self, author: Client, chance: random.Random) -> str:
        """Make a change by `author`, one that the agent notices more often than not, and return what it was."""
        if not self.agent_etag:
            self.put(author)
            return "put"
        changes: dict[str, Callable[[], None]] = {
            "fork": lambda: self.fork(author, promote=True),
            "promote": lambda: self.promote(author, self.active % self.latest + 1),
            "retire": lambda: self.retire(author, retired=not self.retired),
            "disable": lambda: self.disable(author, disabled=not self.disabled),
            "label": lambda: self.label(author, self.staging % self.latest + 1),
            "create": lambda: self.create(author),
            "allow": lambda: self.put(author, allowed=not self.allowed),
            "pin": lambda: self.put(author, pin=chance.choice(sorted({"", "v1", "staging"} - {self.pin}))),
            "delete": lambda: self.delete(author),
        }
        kind = chance.choice(list(changes))
        # What hides the skill is undone soon, or its versions would hardly be seen.
        hiding = {"retire": self.retired, "disable": self.disabled, "allow": not self.allowed}
        if any(hiding.values()):
            kind = chance.choice([kind, *(hides for hides, does in hiding.items() if does)])
        changes[kind]()
        return kind

    @property
    def expected(self) -> str:
        """What invoking the skill must give: its body, or the reason of the refusal."""
        if not self.agent_etag:
            return "AGENT_NOT_FOUND"
        if not self.allowed:
            return "SKILL_NOT_PERMITTED"
        if self.disabled:
            return "SKILL_NOT_FOUND"
        if self.retired:
            return "VERSION_NOT_FOUND" if self.pin else "SKILL_NOT_FOUND"
        return _body({"": self.active, "v1": 1, "staging": self.staging}[self.pin])

    def stale(self, runtime: Client) -> Iterator[str]:
        """Yield what the agent meets that is not as it was acknowledged."""
        found = invoked(runtime, NAME)
        if found != self.expected:
            yield f"{NAME} gave {found} and not {self.expected}"

    def stale_list(self, runtime: Client) -> Iterator[str]:
        """Yield how the agent's list is not as it was acknowledged."""
        names = sorted([*self.others, NAME] if self.expected.startswith("Version") else self.others)
        try:
            answer = runtime.call("SkillService.ListSkills", agent=AGENT, pattern="own/*")
            listed = [entry.name for entry in answer.skills]
        except CallFailed as failed:
            listed = [failed.reason]
        if listed != (names if self.agent_etag else ["AGENT_NOT_FOUND"]):
            yield f"the list was {listed} and not {names}"

    def _skill(self, author: Client, method: str, **fields: Any) -> None:
        made = author.call(f"SkillDefService.{method}", name=NAME, etag=self.etag, **fields)
        self.etag = made.skill_def.etag


def invoked(runtime: Client, name: str) -> str:
    """Return what invoking a skill gives: its body, or the reason of the refusal."""
    try:
        return str(runtime.call("SkillService.InvokeSkill", agent=AGENT, name=name).body)
    except CallFailed as failed:
        return failed.reason


def clients(addresses: Sequence[str], key: str, timeout: float = SECONDS) -> list[Client]:
    """Return a client of each server, closed when the test ends."""
    made = [Client(address, key, timeout=timeout) for address in addresses]
    open_clients.extend(made)
    return made


def _source(version: int) -> str:
    return skill_md("skill", _body(version))


def _body(version: int) -> str:
    return f"Version {version}.\n"
