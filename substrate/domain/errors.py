"""Why requests fail: one class for each reason a caller can act on.

An error carries a sentence for a person, `metadata` for a program and, where input is wrong, the `violations` field
by field. What code and reason each class becomes on the wire is decided in one table, `substrate/rpc/errors.py`.
Decisions (an allowlist that denies, a candidate that is shadowed) are values, not exceptions.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing wrong with the input: `field` in the request's own spelling, and what to do about it."""

    field: str
    description: str


class SubstrateError(Exception):
    """A request that fails for a reason its caller can act on.

    `reason` is the class's name as the wire and the audit spell it: SkillNotFound is ``SKILL_NOT_FOUND``.
    """

    reason: ClassVar[str] = "SUBSTRATE_ERROR"

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        cls.reason = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", cls.__name__).upper()

    def __init__(self, message: str, **metadata: str) -> None:
        super().__init__(message)
        self.message = message
        self.metadata: Mapping[str, str] = metadata
        self.violations: Sequence[Violation] = ()


class InvalidInput(SubstrateError):
    """Input that can never be accepted as it is; `violations` lists every problem found, not the first alone."""

    def __init__(self, *violations: Violation, summary: str = "") -> None:
        super().__init__(summary or " ".join(violation.description for violation in violations))
        self.violations = violations


class _InvalidField(InvalidInput):
    """Input with one wrong field."""

    def __init__(self, field: str, description: str) -> None:
        super().__init__(Violation(field, description))


class InvalidName(_InvalidField):
    """A skill, agent or tenant name, or a qualifier, that breaks the naming rules."""


class InvalidArgument(_InvalidField):
    """A field with a value outside its documented range."""


class InvalidPageToken(_InvalidField):
    """A page or catalog token that this server did not issue for this request."""


class InvalidMessage(_InvalidField):
    """Bytes that are no message of the method called."""


class RequestIdReused(_InvalidField):
    """A request id that came with another request before."""


class InvalidArchive(InvalidInput):
    """An archive that cannot be read, or holds what may not be imported; every problem is listed."""


class InvalidAllowlist(InvalidInput):
    """An allowlist with entries that cannot be read; every bad entry is listed, none is skipped."""


class InvalidSkill(InvalidInput):
    """A SKILL.md that the strict rules refuse; every problem is listed with its line."""


class InvalidAgent(InvalidInput):
    """An agent definition that cannot be accepted."""


class InvalidConfig(InvalidInput):
    """Configuration or bundles that stop the start; every problem is listed with its place."""


class Unauthenticated(SubstrateError):
    """No key, or one that is unknown, expired or revoked."""


class RoleRequired(SubstrateError):
    """The key's role, or its binding to an agent, does not permit this call."""


class TenantSuspended(SubstrateError):
    """Operators have suspended the tenant whose key came with the call."""


class SkillNotPermitted(SubstrateError):
    """The agent's allowlist keeps this name from it; says nothing about whether the name exists."""


class NotFound(SubstrateError):
    """Something the caller named is not there, or is another tenant's, which looks the same."""


class SkillNotFound(NotFound):
    """A permitted name that does not resolve to a skill."""


class SkillFileNotFound(NotFound):
    """A skill that has no file at this path."""


class SkillDefNotFound(NotFound):
    """The tenant has no SkillDef of this name."""


class VersionNotFound(NotFound):
    """The SkillDef has no such version."""


class AgentNotFound(NotFound):
    """No agent of this name is defined for the tenant."""


class TenantNotFound(NotFound):
    """No such tenant."""


class KeyNotFound(NotFound):
    """The tenant has no key with this id."""


class AuditEventNotFound(NotFound):
    """No audit event with this id."""


class AlreadyExists(SubstrateError):
    """Something of this name exists."""


class SkillDefExists(AlreadyExists):
    """The tenant has a SkillDef of this name; fork it to change it."""


class KeyExists(AlreadyExists):
    """A live operator key exists, so the first one has been made."""


class TenantExists(AlreadyExists):
    """A tenant with this id exists."""


class NameLocked(SubstrateError):
    """Operators have locked this name: tenants may not define or disable it."""


class ReviewRequired(SubstrateError):
    """Promotion in this group needs a second author or an operator."""


class SkillQuarantined(SubstrateError):
    """The deciding candidate is invalid, so the name has no trustworthy answer."""


class ToolsExceedAgent(SubstrateError):
    """The skill needs tools that the agent does not have."""


class SkillIneligible(SubstrateError):
    """The skill's `paths` match none of the paths that the caller touches."""


class InvocationNotAllowed(SubstrateError):
    """The skill does not admit this kind of caller."""


class RevisionUnknown(SubstrateError):
    """A catalog token of another database, or of a revision this database has not reached."""


class SkillChanged(SubstrateError):
    """What is stored differs from what was decided on; the caller should look again."""


class EtagMismatch(SubstrateError):
    """The resource changed since the caller read it."""


class AuditUnavailable(SubstrateError):
    """The decision could not be recorded, so it is not given."""


class StoreUnavailable(SubstrateError):
    """The database cannot be reached or did not answer in time."""


class QuotaExceeded(SubstrateError):
    """The tenant has as many of these as it may have; metadata names the quota, its limit and when to try again."""


class TooLarge(SubstrateError):
    """The input is larger than the documented limit."""


class Overloaded(SubstrateError):
    """The server has as many calls in hand as it can serve; try again shortly."""


class DeadlineExceeded(SubstrateError):
    """The call's deadline passed before an answer was ready."""


class Cancelled(SubstrateError):
    """The caller went away before an answer was ready."""
