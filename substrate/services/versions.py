"""How versions are made and stored: what create, fork and import have in common."""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from substrate.domain.archives import files_problems
from substrate.domain.candidates import Candidate, SkillFile, pairs_of
from substrate.domain.errors import InvalidSkill
from substrate.domain.names import SkillName, SkillRef
from substrate.domain.quotas import require
from substrate.domain.skillheader import content_sha256, header_to_plain
from substrate.domain.skillmd import Skill, to_skill_md
from substrate.services.authoring import author_of, parse_source
from substrate.services.contents import Content, version_content
from substrate.services.trace import Trace
from substrate.store import skill_defs, tenants
from substrate.store.session import Transaction
from substrate.store.skill_defs import SkillDef, Version


@dataclass(frozen=True, slots=True)
class Draft:
    """A version as a caller proposes it.

    For a fork, an empty `source` and a None are taken from what is forked.
    """

    source: str = ""
    files: Mapping[str, bytes] | None = None
    positional_base: int | None = None
    promote: bool = False


@dataclass(frozen=True, slots=True)
class Made:
    """A version that is ready to be stored: its parsed text, its files, and what it was forked from.

    `contents` holds the bytes of its files by digest; those that the tenant has stored already may be left out.
    """

    skill: Skill
    files: tuple[SkillFile, ...]
    contents: Mapping[str, bytes]
    positional_base: int
    promote: bool
    lineage: Mapping[str, Any] | None = None


def check_files(files: Mapping[str, bytes] | None) -> None:
    """Raise InvalidSkill with everything that is wrong with a version's files."""
    problems = files_problems((path, len(content)) for path, content in (files or {}).items())
    if problems:
        raise InvalidSkill(*problems)


def as_written(name: SkillName, parent: Content) -> Skill:
    """Return what is forked as its author would write it; raise InvalidSkill when it breaks the strict rules."""
    header = replace(parent.header, name=name.rpartition("/")[2])
    return parse_source(to_skill_md(header, parent.body), name)


def lineage_of(candidate: Candidate) -> dict[str, Any]:
    """Return what a fork records of the content that it was forked from."""
    tools = candidate.header.allowed_tools if candidate.header else None
    return {
        "origin": candidate.origin,
        "version": candidate.version,
        "content_sha256": candidate.content_sha256,
        "allowed_tools": None if tools is None else list(tools),
    }


def narrows_from(
    trace: Trace, connection: Transaction, name: SkillName, row: SkillDef | None
) -> Mapping[str, Any] | None:
    """Return the lineage of what an agent's new text stands in for, whose tools it may not widen; None for authors.

    It is what the tenant has of the name, in effect or newest, else what the name stands for.
    """
    if trace.agent is None:
        return None
    if row is None:
        beneath = trace.snapshot.catalog.resolve(SkillRef(name)).beneath
        return lineage_of(beneath) if beneath else None
    found = skill_defs.version(connection, trace.tenant, name, row.active_version or row.latest_version)
    return lineage_of(version_content(found).candidate) if found else None


def store_version(
    trace: Trace,
    connection: Transaction,
    name: SkillName,
    row: SkillDef | None,
    made: Made,
    revision: int,
    now: datetime,
    *,
    revives: bool = False,
) -> tuple[SkillDef, Version]:
    """Store `made` as the next version of the SkillDef `row`, or as the first of a new one, within the quotas.

    `revives` takes up a retired SkillDef again, without its old versions coming back into effect. Raises QuotaExceeded.
    """
    author = author_of(trace)
    number = 1 if row is None else row.latest_version + 1
    version = _version(name, number, made, now, author, trace.agent.name if trace.agent else "")
    if row is None:
        after = SkillDef(name, number if made.promote else None, number, None, revision, now, author, now)
    else:
        active = None if revives else row.active_version
        after = replace(
            row,
            active_version=number if made.promote else active,
            latest_version=number,
            retired_at=None if revives else row.retired_at,
            revision=revision,
            updated_at=now,
        )
    quotas = trace.snapshot.state.quotas
    if row is None:
        require("skills", quotas.skills, skill_defs.count(connection, trace.tenant) + 1)
        skill_defs.create(connection, trace.tenant, after)
    else:
        skill_defs.save(connection, trace.tenant, after)
    require("versions_per_skill", quotas.versions_per_skill, number)
    contents = skill_defs.not_stored(connection, trace.tenant, made.contents)
    more = version.size + sum(map(len, contents.values()))
    require("bytes", quotas.bytes, tenants.add_bytes(connection, trace.tenant, more))
    # A rehearsal is rolled back; what it would only write to throw away is left out.
    skill_defs.add_version(connection, trace.tenant, version, {} if trace.rehearses else contents)
    return after, version


def made_of(skill: Skill, files: Mapping[str, bytes], positional_base: int, *, promote: bool) -> Made:
    """Return a version with this text and these files, which are given whole by path."""
    listed = []
    contents = {}
    for path, content in sorted(files.items()):
        sha256 = hashlib.sha256(content).hexdigest()
        listed.append(SkillFile(path, len(content), sha256))
        contents[sha256] = content
    return Made(skill, tuple(listed), contents, positional_base, promote)


def digest_of(made: Made) -> str:
    """Return the digest that the version will have."""
    return content_sha256(made.skill.header, made.skill.body, pairs_of(made.files))


def _version(name: SkillName, number: int, made: Made, now: datetime, author: str, created_as: str) -> Version:
    return Version(
        name=name,
        version=number,
        header=header_to_plain(made.skill.header),
        body=made.skill.body,
        positional_base=made.positional_base,
        content_sha256=digest_of(made),
        created_at=now,
        created_by=author,
        promoted_at=now if made.promote else None,
        promoted_by=author if made.promote else None,
        files=made.files,
        lineage=made.lineage,
        created_as=created_as,
    )
