"""Worlds of one name, drawn by chance: everything that a decision about it can depend on, as rows and as a snapshot.

What a call would get in a world is asked of the service's own code; a change of the world is made to its rows, and with
none of the code that supposes changes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, cast

from hypothesis import strategies as st

from substrate.domain.agents import Agent, parse_agent
from substrate.domain.audit import Verb
from substrate.domain.candidates import Candidate, Layer, LayerKind, Standing, Versions
from substrate.domain.catalog import NameMode, NameModes, StaticCatalog
from substrate.domain.changes import Change, ChangeKind
from substrate.domain.eligibility import CallerKind
from substrate.domain.errors import SubstrateError
from substrate.domain.identity import Bearer, Principal, Role
from substrate.domain.inputs import agent_of, static_input, static_of
from substrate.domain.names import AgentName, KeyId, SkillName, TenantId, parse_skill_ref
from substrate.domain.patterns import parse_pattern
from substrate.domain.question import Question, of_one_name
from substrate.domain.recorded import Event
from substrate.domain.replay import Kept
from substrate.domain.skillheader import SkillHeader, content_sha256, header_to_plain
from substrate.services.call import Call
from substrate.services.present import Present
from substrate.services.run import Run
from substrate.services.skills import Admitted, Skills
from substrate.services.snapshots import Snapshot
from substrate.services.trace import Trace
from substrate.sources.static import StaticState
from substrate.sources.tenant import TenantSource, TenantState, candidate_of, version_candidate
from substrate.store.skill_defs import SkillDef, Version

TENANT = TenantId("acme")
NAME = SkillName("doc/a")
AGENT = AgentName("tester")
NOW = datetime(2026, 11, 30, 14, 2, tzinfo=UTC)
PATTERNS = ("*", "**", "doc/*", "doc/a", "doc/?", "*/a", "doc/**", "pay/a", "d*/a")
ENTRIES = [sign + pattern for sign in ("", "", "+", "-") for pattern in PATTERNS]
CARVED = (("doc/*", "-doc/a"), ("-doc/a",), ("-doc/a", "pay/*"), ("doc/a", "-doc/*"))
TOOLS = ("Read", "Write", "Bash", "Bash(git *)")
GLOBS = ("src/**", "*.md", "*")
PATHS = ("src/a.py", "README.md", "docs/x")
QUALIFIERS = (*[""] * 10, "@bundle", "@bundle", "@inline", "@v1", "@v2", "@v3", "@v9")
PINS = ("", "v1", "v2", "v9", "staging", "staging", "nowhere")


@dataclass(frozen=True)
class Stored:
    """A version as its row has it; `spoilt` says that the row's body is not what was stored."""

    header: SkillHeader
    promoted: bool = True
    spoilt: bool = False


@dataclass(frozen=True)
class World:
    """A tenant's rows about the name, what lies below, an agent, and a call. `active` may be a version that is gone."""

    versions: tuple[Stored, ...] = ()
    active: int | None = None
    retired: bool = False
    disabled: bool = False
    staging: int | None = None
    layers: tuple[Layer, ...] = ()
    modes: tuple[tuple[str, NameMode], ...] = ()
    skills: tuple[str, ...] = ()
    tools: tuple[str, ...] | None = None
    pin: str = ""
    role: Role = Role.RUNTIME
    caller_kind: CallerKind = CallerKind.MODEL
    touched: tuple[str, ...] = ()
    qualifier: str = ""

    @property
    def asked(self) -> str:
        return NAME + self.qualifier

    @property
    def agent(self) -> Agent:
        data: dict[str, Any] = {"skills": list(self.skills), "pins": {NAME: self.pin} if self.pin else {}}
        if self.tools is not None:
            data["tools"] = list(self.tools)
        return parse_agent(AGENT, data, LayerKind.TENANT, "tenant:r7")

    @property
    def skill_def(self) -> SkillDef | None:
        if not self.versions:
            return None
        retired = NOW if self.retired else None
        return SkillDef(NAME, self.active, len(self.versions), retired, 7, NOW, "ada", NOW)

    @property
    def rows(self) -> dict[int, Version]:
        found = {}
        for number, stored in enumerate(self.versions, 1):
            body = f"Version {number}.\n"
            digest = content_sha256(stored.header, body)
            row = Version(
                *(NAME, number, header_to_plain(stored.header), "Other.\n" if stored.spoilt else body, 0, digest),
                *(NOW, "ada", NOW if stored.promoted else None, "bob" if stored.promoted else None),
            )
            found[number] = row
        return found

    @property
    def static(self) -> StaticState:
        modes = NameModes([(parse_pattern(pattern), mode) for pattern, mode in self.modes])
        catalog = StaticCatalog(self.layers, modes)
        return StaticState(catalog, {}, (), (), static_input(catalog, ()))

    @property
    def snapshot(self) -> Snapshot:
        """The tenant's state as it is read from such rows."""
        row, rows, agent = self.skill_def, self.rows, self.agent
        tombstone = Candidate(NAME, LayerKind.TENANT, "tenant", Standing.DISABLED)
        definitions = {} if row is None else {NAME: candidate_of(row, rows.get(self.active or 0))}
        layers = (
            Layer(LayerKind.TENANT, "tenant:disabled", {NAME: tombstone} if self.disabled else {}),
            Layer(LayerKind.TENANT, "tenant", definitions),
        )
        labels = {NAME: {"staging": self.staging}} if self.staging else {}
        meant = Versions(labels=labels).number_of(NAME, self.pin) if self.pin else None
        pointed = {number for number in (self.staging, meant) if number in rows}
        versions = Versions({(NAME, number): version_candidate(rows[number]) for number in pointed if number}, labels)
        return Snapshot(TenantState(TENANT, "here", 7, layers, {AGENT: agent}, versions=versions), self.static, 0.0)

    @property
    def present(self) -> Present:
        return Present(self.snapshot, NAME, self.skill_def, self.rows, None, ())

    @property
    def question(self) -> Question:
        """What the explanation of this call is made from."""
        present = self.present
        drafts = self.role is Role.AUTHOR
        agent = present.snapshot.agent(AGENT)
        return present.question(parse_skill_ref(self.asked), agent, self.caller_kind, self.touched, drafts=drafts)

    def after(self, change: Change) -> "World":
        """Return the world once a change has been made in it."""
        match change.kind:
            case ChangeKind.ADD_ENTRY:
                entries = list(self.skills)
                entries.insert(change.index, change.entry)
                return replace(self, skills=tuple(entries))
            case ChangeKind.SET_ALLOWLIST:
                return replace(self, skills=change.entries)
            case ChangeKind.RETIRE | ChangeKind.UNRETIRE:
                return replace(self, retired=change.kind is ChangeKind.RETIRE)
            case ChangeKind.PROMOTE:
                versions = list(self.versions)
                versions[change.version - 1] = replace(versions[change.version - 1], promoted=True)
                return replace(self, versions=tuple(versions), active=change.version)
            case ChangeKind.DISABLE | ChangeKind.ENABLE:
                return replace(self, disabled=change.kind is ChangeKind.DISABLE)
            case ChangeKind.LOCK | ChangeKind.UNLOCK:
                mode = NameMode.LOCKED if change.kind is ChangeKind.LOCK else NameMode.OPEN
                return replace(self, modes=((NAME, mode), *self.modes))
            case ChangeKind.QUALIFY:
                return replace(self, qualifier=f"@{change.qualifier}")


class RowsSource(TenantSource):
    """Reads single versions from a world's rows instead of the database's."""

    def __init__(self, rows: Mapping[int, Version]) -> None:
        self._rows = rows

    def version(
        self,
        tenant: TenantId,  # noqa: ARG002 - there is one tenant, and one name of it.
        name: SkillName,  # noqa: ARG002
        number: int,
        deadline: float | None,  # noqa: ARG002
    ) -> Candidate | None:
        """Return a version's row as a candidate."""
        row = self._rows.get(number)
        return version_candidate(row) if row else None


@dataclass(frozen=True)
class Called:
    """What the service's code gave a call: its trace, and what it admitted or raised."""

    trace: Trace
    admitted: Admitted | None
    refusal: SubstrateError | None

    @property
    def event(self) -> Event:
        """The event of the call, as it is read back."""
        text = self.trace.event("01a22e60-66e5-795d-8000-000000000000", "here/1", self.refusal).text()
        event: Event = json.loads(text)
        return event

    @property
    def kept(self) -> Kept:
        """What is kept of it, read back from its texts; the versions are those of the world."""
        event = self.trace.event("01a22e60-66e5-795d-8000-000000000000", "here/1", self.refusal)
        return Kept(agent_of(event.inputs[0]), of_one_name(static_of(self.trace.snapshot.static.kept, NAME), NAME))

    @property
    def served(self) -> tuple[object, ...] | None:
        """The content that the call gets."""
        if self.admitted is None:
            return None
        winner = self.admitted.winner
        return winner.kind, winner.version, winner.origin, winner.content_sha256, winner.positional_base


def called(world: World) -> Called:
    """Return what an invocation gets, decided by the code that decides for callers."""
    snapshot = world.snapshot
    principal = Principal(TENANT, KeyId("key"), world.role)
    call = Call("InvokeSkill", "call", Bearer(TENANT, KeyId("key"), "secret"), NOW, 0.0)
    trace = Trace(call, Verb.INVOKE, snapshot, principal)
    run = Run(AGENT, caller_kind=world.caller_kind, touched_paths=world.touched)
    skills = Skills(cast("Any", None), RowsSource(world.rows))
    try:
        return Called(trace, skills._admit(trace, run, world.asked), None)
    except SubstrateError as refusal:
        return Called(trace, None, refusal)


def headers() -> st.SearchStrategy[SkillHeader]:
    return st.builds(
        SkillHeader,
        name=st.just("a"),
        description=st.sampled_from(["Does it.", "Does it well."]),
        allowed_tools=st.sampled_from([None, None, None, (), ("Read",), ("Bash(git *)", "Write")]),
        disable_model_invocation=st.sampled_from([False, False, False, True]),
        user_invocable=st.sampled_from([True, True, True, False]),
        paths=st.sampled_from([(), (), (), ("src/**",), ("*.md", "docs/*"), ("*",)]),
    )


@st.composite
def static_layers(draw: st.DrawFn) -> tuple[Layer, ...]:
    """Inline configuration and two bundles, each with or without the name."""
    layers = []
    for kind, origin in (
        (LayerKind.INLINE, "inline:substrate.yaml#skills.doc/a"),
        (LayerKind.BUNDLE, "bundle:one@1.0.0/skills/doc/a/SKILL.md"),
        (LayerKind.BUNDLE, "bundle:two@2.1.0/skills/doc/a/SKILL.md"),
    ):
        standing = draw(st.sampled_from([None, Standing.ACTIVE, Standing.ACTIVE, Standing.QUARANTINED]))
        if standing is None or (kind is LayerKind.INLINE and standing is Standing.QUARANTINED):
            layers.append(Layer(kind, origin.partition("@")[0], {}))
            continue
        header = draw(headers())
        sound = standing is Standing.ACTIVE
        candidate = Candidate(
            *(NAME, kind, origin, standing, header if sound else None),
            content_sha256=content_sha256(header, f"{origin}\n") if sound else "",
            positional_base=draw(st.integers(0, 1)),
            problem="" if sound else "line 2: it cannot be read",
            body=f"{origin}\n" if sound else None,
        )
        layers.append(Layer(kind, origin.partition("@")[0], {NAME: candidate}))
    return tuple(layers)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Everything by chance, so that most calls get to the layers and many to a skill."""
    stored = st.builds(Stored, headers(), st.booleans(), st.sampled_from([False] * 9 + [True]))
    versions = draw(st.lists(stored, max_size=3))
    numbers = [number for number, each in enumerate(versions, 1) if each.promoted]
    # What is in effect has been promoted; now and then its row is gone.
    active = draw(st.sampled_from([None, *numbers, *numbers, *numbers])) if versions else None
    if active is not None and draw(st.sampled_from([False] * 19 + [True])):
        active = 7
    pins = PINS if draw(st.sampled_from([False, False, True])) else ("",)
    return World(
        versions=tuple(versions),
        active=active,
        retired=bool(versions) and draw(st.sampled_from([False, False, False, True])),
        disabled=draw(st.sampled_from([False] * 8 + [True])),
        staging=draw(st.sampled_from([None, *range(1, len(versions) + 1)])),
        layers=draw(static_layers()),
        modes=tuple(
            draw(
                st.lists(st.tuples(st.sampled_from(PATTERNS), st.sampled_from([*NameMode, NameMode.OPEN])), max_size=2)
            )
        ),
        skills=draw(
            st.one_of(*[st.lists(st.sampled_from(ENTRIES), max_size=4).map(tuple)] * 2, st.sampled_from(CARVED))
        ),
        tools=draw(st.sampled_from([None, None, (), ("Read",), ("Bash", "Write")])),
        pin=draw(st.sampled_from(pins)),
        role=draw(st.sampled_from([Role.RUNTIME, Role.RUNTIME, Role.AUTHOR])),
        caller_kind=draw(st.sampled_from(CallerKind)),
        touched=tuple(draw(st.lists(st.sampled_from(PATHS), max_size=2))),
        qualifier=draw(st.sampled_from(QUALIFIERS)),
    )
