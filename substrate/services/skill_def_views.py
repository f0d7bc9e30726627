"""What authors read of SkillDefs: the definitions, their versions, how contents differ, and whose a digest is.

Every verb passes the allowlist of the agent that the call acts as; without one the role decides. Operators read what a
review needs, in the tenant that they name.
"""

import re
from dataclasses import dataclass

from substrate.domain.audit import Verb
from substrate.domain.candidates import Candidate, Resolution, Standing
from substrate.domain.catalog import Catalog
from substrate.domain.difference import FieldDifference, body_difference, differing_files, field_differences
from substrate.domain.errors import InvalidArgument, InvalidPageToken
from substrate.domain.identity import Role
from substrate.domain.names import SkillName, SkillRef
from substrate.domain.tokens import read_page_token
from substrate.services.access import acting_agent, require_role
from substrate.services.authoring import begin, existing, inside
from substrate.services.call import Call
from substrate.services.contents import content_of, no_version, parse_content, version_content
from substrate.services.decisions import Decisions
from substrate.services.pages import Page, cut, page_limit, page_of_names
from substrate.services.trace import Trace
from substrate.store import labels, skill_defs
from substrate.store.labels import Label
from substrate.store.skill_defs import SkillDef, Version

MAX_VERIFIED = 100

_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Found:
    """A SkillDef as it was read, its labels, whether its name is disabled, and the version asked for, if any."""

    skill_def: SkillDef
    labels: tuple[Label, ...]
    disabled: bool
    version: Version | None = None


@dataclass(frozen=True, slots=True)
class Difference:
    """How two contents differ."""

    before: Candidate
    after: Candidate
    fields: list[FieldDifference]
    body: str
    files: list[str]


@dataclass(frozen=True, slots=True)
class Verified:
    """Whether a digest is that of what the name stands for, and which versions of the tenant's have it."""

    matches: bool
    resolution: Resolution
    versions: list[int]


class SkillDefViews:
    """The reading use cases of `SkillDefService`."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._database = decisions.database

    def get(self, call: Call, agent: str, name: str, version: int, *, tenant: str = "") -> Found:
        """Return a SkillDef with one version: `version`, or for 0 the active one, or the latest when none is active."""

        def judge(trace: Trace) -> Found:
            bare = begin(trace, agent, name, reviews=True, tenant=tenant)
            if version < 0:
                raise InvalidArgument("version", "Must be 0 (the active version) or a version number.")
            with self._database.tenant(trace.tenant, call.deadline, snapshot=True) as connection:
                row = existing(connection, trace, bare)
                number = version or row.active_version or row.latest_version
                found = skill_defs.version(connection, trace.tenant, bare, number)
                pointing = labels.of_tenant(connection, trace.tenant, [bare])
            if found is None:
                raise no_version(bare, number)
            version_content(found)
            trace.resolution = trace.snapshot.catalog.resolve(SkillRef(bare))
            return Found(row, tuple(pointing), trace.snapshot.catalog.is_disabled(bare), found)

        return self._decisions.settle(call, Verb.GET, judge, required=False, inside=inside(call, tenant))

    def list(
        self, call: Call, agent: str, pattern: str, page_size: int, token: str, *, include_retired: bool
    ) -> Page[Found]:
        """Return one page of the tenant's SkillDefs, by name."""

        def judge(trace: Trace) -> Page[Found]:
            require_role(trace, Role.AUTHOR)
            acting_agent(trace, agent)
            catalog = trace.snapshot.catalog
            names = [c.name for c in catalog.skill_defs() if include_retired or c.standing is not Standing.RETIRED]
            bound = ("ListSkillDefs", agent, include_retired)
            page = page_of_names(trace, names, bound, pattern, page_size, token)
            with self._database.tenant(trace.tenant, call.deadline, snapshot=True) as connection:
                rows = skill_defs.some_of(connection, trace.tenant, page.rows)
                pointing = labels.of_tenant(connection, trace.tenant, page.rows)
            return page.of([_listed(row, pointing, catalog) for row in rows])

        return self._decisions.settle(call, Verb.LIST_SKILL_DEFS, judge, required=False)

    def list_versions(
        self, call: Call, agent: str, name: str, page_size: int, token: str, *, tenant: str = ""
    ) -> tuple[Found, Page[Version]]:
        """Return a SkillDef and one page of its versions, the newest first."""

        def judge(trace: Trace) -> tuple[Found, Page[Version]]:
            bare = begin(trace, agent, name, reviews=True, tenant=tenant)
            limit = page_limit(page_size)
            bound = ("ListSkillDefVersions", trace.tenant, trace.agent_name or "", bare)
            before = read_page_token(token, *bound)
            if before and not (before.isdigit() and len(before) <= len("999999999")):
                raise InvalidPageToken("page_token", "The page token was not issued by this server; start again.")
            with self._database.tenant(trace.tenant, call.deadline, snapshot=True) as connection:
                row = existing(connection, trace, bare)
                found = skill_defs.page_versions(
                    connection, trace.tenant, bare, int(before) if before else None, limit + 1
                )
                pointing = labels.of_tenant(connection, trace.tenant, [bare])
            trace.admitted = min(len(found), limit)
            page = cut(found, limit, lambda version: str(version.version), *bound, weight=_weight)
            return _listed(row, pointing, trace.snapshot.catalog), page

        within = inside(call, tenant)
        return self._decisions.settle(call, Verb.LIST_VERSIONS, judge, required=False, inside=within)

    def diff(self, call: Call, agent: str, name: str, origin: str, target: str, *, tenant: str = "") -> Difference:
        """Compare the content `origin` of a name with the content `target`."""

        def judge(trace: Trace) -> Difference:
            bare = begin(trace, agent, name, reviews=True, tenant=tenant)
            asked = (parse_content(bare, origin, "from"), parse_content(bare, target, "to"))
            with self._database.tenant(trace.tenant, call.deadline, snapshot=True) as connection:
                left, right = (content_of(connection, trace, bare, one) for one in asked)
            trace.details = {"from": left.candidate.content_sha256, "to": right.candidate.content_sha256}
            return Difference(
                left.candidate,
                right.candidate,
                field_differences(left.header, right.header),
                body_difference(left.body, right.body, left.candidate.origin, right.candidate.origin),
                differing_files(left.candidate.files, right.candidate.files),
            )

        return self._decisions.settle(call, Verb.DIFF, judge, required=False, inside=inside(call, tenant))

    def verify(self, call: Call, agent: str, name: str, digest: str) -> Verified:
        """Say whether `digest` is that of what `name` stands for now, and which versions have it."""

        def judge(trace: Trace) -> Verified:
            bare = begin(trace, agent, name)
            if not _DIGEST.fullmatch(digest):
                raise InvalidArgument("content_sha256", "Must be 64 lower-case hexadecimal digits.")
            trace.resolution = found = trace.snapshot.catalog.resolve(SkillRef(bare))
            with self._database.tenant(trace.tenant, call.deadline, snapshot=True) as connection:
                versions = skill_defs.versions_of_digest(connection, trace.tenant, bare, digest, MAX_VERIFIED)
            matches = found.winner is not None and found.winner.content_sha256 == digest
            trace.details = {"digest": digest, "matches": matches}
            return Verified(matches, found, versions)

        return self._decisions.settle(call, Verb.VERIFY, judge, required=False)


def _weight(version: Version) -> int:
    """Return how many bytes a version takes in a list, rounded up."""
    return 8192 + sum(len(file.path.encode()) + 128 for file in version.files)


def _listed(row: SkillDef, pointing: list[Label], catalog: Catalog) -> Found:
    name: SkillName = row.name
    return Found(row, tuple(label for label in pointing if label.name == name), catalog.is_disabled(name))
