"""What runtimes ask: what to wire into a model, which skills there are, and the text of one."""

import difflib
import hashlib
import json
import mimetypes
from dataclasses import dataclass
from functools import partial

from substrate.domain.agents import Agent
from substrate.domain.arguments import substitute
from substrate.domain.audit import DecidingEntry, Verb, hmac_of
from substrate.domain.candidates import Candidate, LayerKind, Resolution, SkillFile
from substrate.domain.eligibility import Visible, barrier_of_caller, reached, visible
from substrate.domain.errors import InvalidArgument, SkillChanged, SkillFileNotFound, SkillNotFound, SubstrateError
from substrate.domain.identity import Role
from substrate.domain.names import SkillRef, parse_skill_ref
from substrate.domain.paths import MAX_PATH_LENGTH, first_eligible
from substrate.domain.patterns import Pattern, PatternSet, parse_query_pattern
from substrate.domain.rendering import CatalogEntry, RunNote, run_note
from substrate.domain.skillmatch import Reason
from substrate.domain.tokens import page_token, read_page_token
from substrate.services.access import gate
from substrate.services.call import Call
from substrate.services.decisions import Decisions
from substrate.services.pages import fitting
from substrate.services.run import Run, begin
from substrate.services.trace import Trace, debugging
from substrate.sources import static
from substrate.sources.bundles import read_file
from substrate.sources.tenant import TenantSource

DEFAULT_NOTE_BUDGET = 2000
MAX_NOTE_BUDGET = 100_000
DEFAULT_PAGE = 1000
MAX_PAGE = 10_000
MAX_SKILL_DIR_LENGTH = 512

_SUGGESTED_FROM = 50
_ENTRY_OVERHEAD = 128
"""What an entry adds to a message beside its texts: a digest of 64 characters and the tags, rounded up."""


@dataclass(frozen=True, slots=True)
class Prepared:
    """What a run begins with: whether the Skill tool is offered, and the run-start note, if there is one."""

    offers_tool: bool
    note: RunNote | None


@dataclass(frozen=True, slots=True)
class Listed:
    """Skills that were listed, of `total` that could be, and the digest of their names and contents."""

    entries: tuple[Visible, ...]
    total: int
    sha256: str


@dataclass(slots=True)
class Page:
    """One page of a list, and how many permitted skills it leaves out for the caller's kind or the touched paths.

    `encoded` is its wire form, kept with it by whoever encodes it first.
    """

    listed: Listed
    next_page_token: str
    left_out: int
    encoded: bytes | None = None


@dataclass(slots=True)
class Admitted:
    """A reference that gate, resolution and eligibility let through, with what each of them said.

    `encoded` is what all answers about it have in common, in wire form, kept here by whoever encodes it first.
    """

    ref: SkillRef
    decision: DecidingEntry | None
    resolution: Resolution
    winner: Candidate
    encoded: bytes | None = None


@dataclass(frozen=True, slots=True)
class Invoked:
    """A skill's text with its arguments in place, and where it came from."""

    skill: Admitted
    body: str
    location: str


@dataclass(frozen=True, slots=True)
class ReadFile:
    """A resource file's bytes; `is_text` says whether they are UTF-8 text."""

    file: SkillFile
    content: bytes
    media_type: str
    is_text: bool
    winner: Candidate


class Skills:
    """The use cases of `SkillService`; every method decides, records and then answers."""

    def __init__(self, decisions: Decisions, source: TenantSource) -> None:
        self._decisions = decisions
        self._source = source

    def prepare(self, call: Call, run: Run, budget: int) -> Prepared:
        """Return what to wire into a run; `budget` is in tokens, 0 for the default."""

        def judge(trace: Trace) -> Prepared:
            agent = begin(trace, run)
            if not 0 <= budget <= MAX_NOTE_BUDGET:
                raise InvalidArgument("budget_tokens", f"Must be 0, for the default, or 1 to {MAX_NOTE_BUDGET}.")
            if agent.allowlist.denies_all or not agent.allowlist.has_allow:
                trace.admitted = trace.left_out = 0
                return Prepared(not agent.allowlist.denies_all, None)
            key = ("note", agent.name, run.caller_kind, budget)
            made = partial(_note, trace, agent, run, budget or DEFAULT_NOTE_BUDGET)
            listed, note = made() if run.touched_paths else trace.snapshot.derive(key, made)
            _describe(trace, listed)
            trace.left_out = len(note.omitted)
            return Prepared(offers_tool=True, note=note)

        return self._decisions.settle(call, Verb.PREPARE, judge, required=self._decisions.strict_lists, reads=run.reads)

    def list(self, call: Call, run: Run, pattern: str = "", page_size: int = 0, page_token: str = "") -> Page:
        """Return one page of the skills that the agent may invoke now, by name."""

        def judge(trace: Trace) -> Page:
            agent = begin(trace, run)
            if page_size < 0:
                raise InvalidArgument("page_size", "Must not be negative.")
            wanted = parse_query_pattern(pattern)
            trace.filter = pattern
            size = min(page_size or DEFAULT_PAGE, MAX_PAGE)
            key = ("page", agent.name, run.caller_kind, pattern, size, page_token)
            made = partial(_page, trace, agent, run, wanted, pattern, size, page_token)
            # Touched paths differ from call to call, so what depends on them is not worth its memory.
            page = made() if run.touched_paths else trace.snapshot.derive(key, made)
            _describe(trace, page.listed)
            trace.left_out = page.left_out
            return page

        return self._decisions.settle(call, Verb.LIST, judge, required=self._decisions.strict_lists, reads=run.reads)

    def invoke(
        self, call: Call, run: Run, name: str, arguments: str = "", skill_dir: str = "", expected_digest: str = ""
    ) -> Invoked:
        """Return the body of one skill with `arguments` in place."""

        def judge(trace: Trace) -> Invoked:
            trace.arguments_hmac = hmac_of(trace.snapshot.state.arguments_key, arguments)
            # First: malformed input leaves no event, so it must tell nothing of the name either.
            if len(skill_dir) > MAX_SKILL_DIR_LENGTH or not skill_dir.isprintable():
                raise InvalidArgument(
                    "skill_dir", f"Must be printable text of at most {MAX_SKILL_DIR_LENGTH} characters."
                )
            skill = self._admit(trace, run, name)
            winner, ref = skill.winner, skill.ref
            if expected_digest and expected_digest != winner.content_sha256:
                raise SkillChanged(
                    f"The skill '{ref}' has changed; its digest is now {winner.content_sha256}.",
                    name=ref.name,
                    content_sha256=winner.content_sha256,
                )
            location = skill_dir or f"skill://{ref.name}"
            header = winner.header
            body = substitute(
                self._body(trace, winner),
                arguments,
                declared=header.arguments if header else (),
                hint=header.argument_hint if header else None,
                positional_base=winner.positional_base,
                skill_dir=location,
            )
            return Invoked(skill, body, location)

        return self._decisions.settle(call, Verb.INVOKE, judge, required=True, reads=run.reads)

    def read_file(self, call: Call, run: Run, name: str, path: str) -> ReadFile:
        """Return one resource file of a skill."""

        def judge(trace: Trace) -> ReadFile:
            _check_path(path)
            skill = self._admit(trace, run, name)
            winner, ref = skill.winner, skill.ref
            trace.filter = path
            file = next((file for file in winner.files if file.path == path), None)
            if file is None:
                raise SkillFileNotFound(f"The skill '{ref}' has no such file.", name=ref.name, path=ascii(path)[:256])
            content = self._file(trace, winner, path)
            return ReadFile(file, content, media_type(path), _is_text(content), winner)

        return self._decisions.settle(call, Verb.READ_FILE, judge, required=True, reads=run.reads)

    def _admit(self, trace: Trace, run: Run, name: str) -> Admitted:
        """Take one reference through gate, resolution and eligibility; raise the first that refuses."""
        agent = begin(trace, run)
        # Touched paths differ from call to call, and versions that are not active are not in the snapshot.
        if run.touched_paths or "@" in name:
            return self._examine(trace, agent, run, name)
        skill = trace.snapshot.admit(
            (agent.name, run.caller_kind, name), lambda: self._examine(trace, agent, run, name)
        )
        trace.requested, trace.name = name, skill.ref.name
        trace.decision, trace.resolution = skill.decision, skill.resolution
        return skill

    def _examine(self, trace: Trace, agent: Agent, run: Run, name: str) -> Admitted:
        ref = parse_skill_ref(name)
        trace.requested = name
        gate(trace, ref.name)
        tenant = trace.principal.tenant
        catalog = trace.snapshot.catalog
        if ref.qualifier is None:
            resolution = catalog.resolve_for(ref.name, agent.pins)
        else:
            # Drafts are for their authors to try, and for agents that are pinned to them.
            drafts = trace.drafts = trace.principal.role is Role.AUTHOR or catalog.pins_to(ref, agent.pins)
            resolution = self._source.resolve(catalog, tenant, ref, trace.call.deadline, drafts=drafts)
        trace.resolution = resolution
        winner = reached(resolution, agent, run.caller_kind, run.touched_paths)
        if isinstance(winner, SubstrateError):
            if isinstance(winner, SkillNotFound):
                _suggest(trace, agent, ref, winner)
            raise winner
        if winner.header and winner.header.paths:
            trace.touched_path = first_eligible(winner.header.paths, run.touched_paths)
        return Admitted(ref, trace.decision, resolution, winner)

    def _file(self, trace: Trace, winner: Candidate, path: str) -> bytes:
        if winner.kind is LayerKind.TENANT:
            return self._source.file(trace.principal.tenant, winner, path, trace.call.deadline)
        return read_file(winner, path)

    def _body(self, trace: Trace, winner: Candidate) -> str:
        if winner.kind is LayerKind.TENANT:
            return self._source.body(trace.principal.tenant, winner, trace.call.deadline)
        return static.read_body(winner)


def _usable(trace: Trace, agent: Agent, run: Run) -> list[Visible]:
    """Return the skills that this caller may invoke now, by name."""
    usable = []
    for found in _visible(trace, agent):
        trace.call.require_time()
        if barrier_of_caller(found.winner, run.caller_kind, run.touched_paths) is None:
            usable.append(found)
    return usable


def _visible(trace: Trace, agent: Agent) -> tuple[Visible, ...]:
    """Return the skills that the agent's allowlist and tools admit, by name, whoever calls."""
    return trace.snapshot.admit(("visible", agent.name), lambda: visible(trace.snapshot.catalog, agent))


def _note(trace: Trace, agent: Agent, run: Run, budget: int) -> tuple[Listed, RunNote]:
    """Return the run-start note of the skills that an allow entry admits, and what it lists."""
    named = [v for v in _usable(trace, agent, run) if v.decision.reason == Reason.ALLOW_RULE.value]
    note = run_note([_entry(v) for v in named], budget)
    kept = frozenset(note.listed)
    return _listed(tuple(v for v in named if v.name in kept), len(named)), note


def _page(trace: Trace, agent: Agent, run: Run, wanted: Pattern | None, pattern: str, size: int, token: str) -> Page:
    bound = ("ListSkills", trace.principal.tenant, agent.name, run.caller_kind.value, list(run.touched_paths), pattern)
    after = read_page_token(token, *bound)
    usable = _usable(trace, agent, run)
    # Only what the allowlist admits is counted: an agent may read its events, and must not learn of other names there.
    admitted = _visible(trace, agent)
    if wanted is not None:
        patterns = PatternSet([wanted])
        usable = [v for v in usable if patterns.matching(v.name)]
        admitted = tuple(v for v in admitted if patterns.matching(v.name))
    rest = [v for v in usable if v.name > after]
    size = min(size, fitting(_weight(v) for v in rest))
    following = page_token(rest[size - 1].name, *bound) if len(rest) > size else ""
    return Page(_listed(tuple(rest[:size]), len(usable)), following, len(admitted) - len(usable))


def _weight(entry: Visible) -> int:
    """Return how many bytes an entry takes on the wire, rounded up."""
    header = entry.winner.header
    texts = (header.description, header.when_to_use or "", header.argument_hint or "") if header else ()
    return _ENTRY_OVERHEAD + len(entry.name) + sum(len(text.encode()) for text in texts)


def _listed(entries: tuple[Visible, ...], total: int) -> Listed:
    digest = hashlib.sha256(json.dumps([[v.name, v.winner.content_sha256] for v in entries]).encode()).hexdigest()
    return Listed(entries, total, digest)


def _describe(trace: Trace, listed: Listed) -> None:
    """Note for the event, and the debug log, what a list or a note holds and how much it leaves out."""
    trace.admitted = len(listed.entries)
    trace.entries_sha256 = listed.sha256
    if debugging():
        trace.resolved = [(v.name, v.decision, v.resolution) for v in listed.entries]


def _entry(found: Visible) -> CatalogEntry:
    return CatalogEntry(found.name, found.winner.header.description if found.winner.header else "")


def _suggest(trace: Trace, agent: Agent, ref: SkillRef, error: SkillNotFound) -> None:
    """Name up to three skills that the agent may see and may have meant."""
    group = ref.name.rpartition("/")[0]
    kin = [v.name for v in _visible(trace, agent) if v.name.rpartition("/")[0] == group][:_SUGGESTED_FROM]
    close = difflib.get_close_matches(ref.name.rpartition("/")[2], [name.rpartition("/")[2] for name in kin], n=3)
    if close:
        close = [f"{group}/{name}" if group else name for name in close]
        error.metadata = {**error.metadata, "suggestions": ", ".join(close)}
        error.message += f" Did you mean {', '.join(close)}?"


def _check_path(path: str) -> None:
    inside = not path.startswith("/") and ".." not in path.split("/")
    if not inside or not path.isprintable() or not 0 < len(path) <= MAX_PATH_LENGTH:
        raise InvalidArgument("path", f"Must be a relative path of 1 to {MAX_PATH_LENGTH} printable characters.")


def media_type(path: str) -> str:
    """Return what kind of file its name says that it is."""
    return mimetypes.guess_type(path)[0] or "application/octet-stream"


def _is_text(content: bytes) -> bool:
    try:
        return "\0" not in content.decode()
    except UnicodeDecodeError:
        return False
