"""Names of skills, agents and tenants, parsed once into types that prove it.

A skill name is 1 to 8 segments joined by ``/``. A segment is a slug: lower-case ASCII letters and digits in runs
joined by single hyphens, at most 64 characters. The whole name has at most 256 characters. The last segment is the
Agent Skills ``name``; what precedes it is the group. Only ASCII is admitted, so a look-alike letter can never shadow
a trusted name.
"""

import re
from dataclasses import dataclass
from enum import Enum
from functools import lru_cache
from typing import NewType

from substrate.domain.errors import InvalidName

SkillName = NewType("SkillName", str)
AgentName = NewType("AgentName", str)
TenantId = NewType("TenantId", str)
KeyId = NewType("KeyId", str)
Label = NewType("Label", str)

MAX_SEGMENTS = 8
MAX_SEGMENT_LENGTH = 64
MAX_NAME_LENGTH = 256
MAX_TENANT_LENGTH = 40

PLATFORM_TENANT = TenantId("platform")
"""The tenant whose keys are operators'; it owns no skills."""

_SLUG = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)*", re.ASCII)


def slug_problem(text: str, limit: int = MAX_SEGMENT_LENGTH) -> str | None:
    """Say what keeps `text` from being a slug of at most `limit` characters, or None when it is one."""
    if not text:
        return "is empty"
    if len(text) > limit:
        return f"has {len(text)} characters; at most {limit} are allowed"
    if _SLUG.fullmatch(text):
        return None
    if any("A" <= character <= "Z" for character in text):
        return "has upper-case letters; use lower case"
    odd = next((c for c in text if not ("a" <= c <= "z" or "0" <= c <= "9" or c == "-")), None)
    if odd is not None:
        return f"has the character {odd!a}; use a-z, 0-9 and single hyphens"
    return "must not begin or end with a hyphen, nor have two in a row"


def skill_name_problem(text: str) -> str | None:
    """Say what keeps `text` from being a skill name, or None when it is one."""
    if not text:
        return "is empty"
    if len(text) > MAX_NAME_LENGTH:
        return f"has {len(text)} characters; at most {MAX_NAME_LENGTH} are allowed"
    segments = text.split("/")
    if len(segments) > MAX_SEGMENTS:
        return f"has {len(segments)} segments; at most {MAX_SEGMENTS} are allowed"
    for segment in segments:
        if not segment:
            return "has an empty segment; write group/name without leading, trailing or doubled slashes"
        problem = slug_problem(segment)
        if problem:
            return f"segment {_shown(segment)} {problem}"
    return None


def parse_skill_name(text: str, field: str = "name") -> SkillName:
    """Return `text` as a SkillName; raise InvalidName, naming `field`, when it is none."""
    problem = skill_name_problem(text)
    if problem:
        raise InvalidName(field, f"The skill name {_shown(text)} {problem}.")
    return SkillName(text)


def parse_agent_name(text: str, field: str = "agent") -> AgentName:
    """Return `text` as an AgentName (one slug of at most 64 characters); raise InvalidName when it is none."""
    problem = slug_problem(text)
    if problem:
        raise InvalidName(field, f"The agent name {_shown(text)} {problem}.")
    return AgentName(text)


def parse_tenant_id(text: str, field: str = "tenant") -> TenantId:
    """Return `text` as a TenantId (one slug of at most 40 characters); raise InvalidName when it is none."""
    problem = slug_problem(text, MAX_TENANT_LENGTH)
    if problem:
        raise InvalidName(field, f"The tenant id {_shown(text)} {problem}.")
    return TenantId(text)


class QualifierKind(Enum):
    """What part of a name's candidates a qualified reference asks for."""

    BUNDLE = "bundle"
    INLINE = "inline"
    VERSION = "version"


@dataclass(frozen=True, slots=True)
class Qualifier:
    """The part after ``@``: ``bundle``, ``inline`` or ``v<N>`` with N from 1 (`version`, else None)."""

    kind: QualifierKind
    version: int | None = None

    def __str__(self) -> str:
        return f"v{self.version}" if self.kind is QualifierKind.VERSION else self.kind.value


@dataclass(frozen=True, slots=True)
class SkillRef:
    """A skill name with an optional qualifier, as callers write it: ``doc/chunk-review@v3``.

    The allowlist only ever sees `name`.
    """

    name: SkillName
    qualifier: Qualifier | None = None

    def __str__(self) -> str:
        return f"{self.name}@{self.qualifier}" if self.qualifier else self.name


_LIKE_VERSION = re.compile(r"v[0-9]+", re.ASCII)
_RESERVED = (QualifierKind.BUNDLE.value, QualifierKind.INLINE.value)
_VERSION = re.compile(r"v([1-9][0-9]{0,8})", re.ASCII)


@lru_cache(maxsize=4096)
def parse_skill_ref(text: str, field: str = "name") -> SkillRef:
    """Return `text` as a SkillRef; raise InvalidName when the name or the qualifier is malformed."""
    bare, at, suffix = text.partition("@")
    name = parse_skill_name(bare, field)
    if not at:
        return SkillRef(name)
    version = _VERSION.fullmatch(suffix)
    if version:
        return SkillRef(name, Qualifier(QualifierKind.VERSION, int(version.group(1))))
    if suffix in (QualifierKind.BUNDLE.value, QualifierKind.INLINE.value):
        return SkillRef(name, Qualifier(QualifierKind(suffix)))
    raise InvalidName(field, f"The qualifier {_shown(suffix)} is unknown; use @bundle, @inline or @v<number>.")


def parse_label(text: str, field: str = "label") -> Label:
    """Return `text` as a label: a slug of at most 64 characters that is no qualifier; raise InvalidName otherwise."""
    problem = slug_problem(text)
    if problem is None and (_LIKE_VERSION.fullmatch(text) or text in _RESERVED):
        problem = "is kept for versions and layers"
    if problem:
        raise InvalidName(field, f"The label {_shown(text)} {problem}.")
    return Label(text)


def parse_pin(text: str, field: str) -> int | Label:
    """Return what a pin points at: the number of a version (``v3``), or a label; raise InvalidName when it is none."""
    version = _VERSION.fullmatch(text)
    return int(version.group(1)) if version else parse_label(text, field)


def _shown(text: str) -> str:
    """Quote `text` in ASCII and at a bounded length, so a hostile name cannot garble a message."""
    return ascii(text if len(text) <= MAX_SEGMENT_LENGTH else text[:MAX_SEGMENT_LENGTH] + "...")
