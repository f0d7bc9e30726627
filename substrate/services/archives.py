"""Skills out as archives, and in again."""

from dataclasses import dataclass, replace

from substrate.domain.archives import MAX_ARCHIVE_BYTES, PackedSkill, pack, unpack
from substrate.domain.audit import Verb
from substrate.domain.candidates import Candidate
from substrate.domain.errors import InvalidSkill, TooLarge, Violation
from substrate.domain.identity import Role
from substrate.domain.names import SkillName
from substrate.domain.skillmd import Skill, to_skill_md
from substrate.services.access import acting_agent, gate, require_role
from substrate.services.authoring import begin, check_mode, check_tools, parse_bytes
from substrate.services.call import Call
from substrate.services.contents import content_of, file_contents, parse_content
from substrate.services.decisions import Decisions
from substrate.services.trace import Trace
from substrate.services.versions import digest_of, made_of, narrows_from, store_version
from substrate.store import skill_defs
from substrate.store.session import Transaction


@dataclass(frozen=True, slots=True)
class Exported:
    """An archive, and the content that it holds."""

    archive: bytes
    candidate: Candidate


@dataclass(frozen=True, slots=True)
class Imported:
    """What became of one skill of an archive: the version that holds its content, and whether that is new."""

    name: SkillName
    version: int
    created: bool
    content_sha256: str


class Archives:
    """The use cases of `SkillDefService` that take or give archives."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def export(self, call: Call, agent: str, name: str, origin: str) -> Exported:
        """Return the content `origin` of a name as an archive."""

        def judge(trace: Trace) -> Exported:
            bare = begin(trace, agent, name)
            asked = parse_content(bare, origin, "from")
            with self._decisions.database.tenant(trace.tenant, call.deadline, snapshot=True) as connection:
                content = content_of(connection, trace, bare, asked)
                files = file_contents(connection, trace, content.candidate)
            source = to_skill_md(content.header, content.body).encode()
            archive = pack([PackedSkill(bare, source, files, content.candidate.positional_base)])
            if len(archive) > MAX_ARCHIVE_BYTES:
                message = f"The archive has more than {MAX_ARCHIVE_BYTES} bytes; read the files one by one."
                raise TooLarge(message, limit=str(MAX_ARCHIVE_BYTES))
            trace.details = {"digest": content.candidate.content_sha256, "origin": content.candidate.origin}
            return Exported(archive, content.candidate)

        # A body leaves the server here, as it does when it is invoked.
        return self._decisions.settle(call, Verb.EXPORT, judge, required=True)

    def load(
        self, call: Call, agent: str, archive: bytes, *, promote: bool, validate_only: bool = False
    ) -> list[Imported]:
        """Store every skill of `archive`, or none; `promote` puts SkillDefs in effect that were not there."""
        parsed: list[tuple[PackedSkill, Skill]] = []

        def check(trace: Trace) -> None:
            require_role(trace, Role.AUTHOR)
            acting_agent(trace, agent)
            if not parsed:
                parsed.extend(_parsed(unpack(archive)))
            for packed, skill in parsed:
                trace.requested = packed.name
                gate(trace, packed.name)
                check_mode(trace, packed.name, promotes=promote)
                check_tools(trace, packed.name, skill.header, None)
            trace.requested, trace.name, trace.decision = "", None, None

        def apply(trace: Trace, connection: Transaction, revision: int) -> list[Imported]:
            done = [
                self._store(trace, connection, packed, skill, revision, promote=promote) for packed, skill in parsed
            ]
            trace.details = {
                "skills": [[one.name, one.version, one.created, one.content_sha256] for one in done],
                "promoted": promote,
            }
            return done

        return self._decisions.change(call, Verb.IMPORT, check, apply, rehearse=validate_only)

    def _store(
        self,
        trace: Trace,
        connection: Transaction,
        packed: PackedSkill,
        skill: Skill,
        revision: int,
        *,
        promote: bool,
    ) -> Imported:
        row = skill_defs.get(connection, trace.tenant, packed.name)
        # What is in effect is changed by who has read its etag, and by nobody else.
        made = made_of(skill, packed.files, packed.positional_base, promote=promote and row is None)
        digest = digest_of(made)
        known = skill_defs.versions_of_digest(
            connection, trace.tenant, packed.name, digest, 1, positional_base=packed.positional_base
        )
        if known:
            return Imported(packed.name, known[0], created=False, content_sha256=digest)
        lineage = narrows_from(trace, connection, packed.name, row)
        check_tools(trace, packed.name, skill.header, lineage)
        made = replace(made, lineage=lineage)
        now = self._decisions.clock.now()
        _, version = store_version(trace, connection, packed.name, row, made, revision, now)
        return Imported(packed.name, version.version, created=True, content_sha256=digest)


def _parsed(skills: list[PackedSkill]) -> list[tuple[PackedSkill, Skill]]:
    """Read every SKILL.md of an archive; raise InvalidSkill with the problems of all of them."""
    parsed: list[tuple[PackedSkill, Skill]] = []
    problems: list[Violation] = []
    for packed in skills:
        try:
            parsed.append((packed, parse_bytes(packed.source, packed.name)))
        except InvalidSkill as error:
            problems.extend(error.violations)
    if problems:
        raise InvalidSkill(*problems)
    return parsed
