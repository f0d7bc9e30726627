"""Stored events, read from a text that somebody with the right to the database may have damaged.

An event that was damaged is evidence, so it is still shown, with what can be read of it; nothing is concluded from it.
That a text is well-formed does not make it true: whether it is what was written, its hash in the chain says.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime, timedelta
from typing import Any

from substrate.domain.audit import EventOutcome, Verb, is_uuid
from substrate.domain.candidates import CandidateState, LayerKind
from substrate.domain.eligibility import CallerKind
from substrate.domain.identity import Role
from substrate.domain.skillmatch import Reason

Event = Mapping[str, Any]
"""The plain fields of an event, as they are stored."""

Check = Callable[[Any], bool]


def readable(text: str) -> Event:
    """Return the fields of a stored event that hold what `substrate.domain.audit.AuditEvent` says; others are left out.

    Never raises: a text that is no event at all has no fields.
    """
    return {name: value for name, value in _parsed(text).items() if name in _FIELDS and _FIELDS[name](value)}


def whole(text: str, tenant: str) -> Event | None:
    """Return the fields of a stored event, or None when one of them cannot be read or it is not of `tenant`.

    Fields that this version does not know are no fault, but a verb is that it does not know.
    """
    found = _parsed(text)
    if not all(check(found[name]) for name, check in _FIELDS.items() if name in found):
        return None
    if not found.keys() >= _REQUIRED or found["tenant"] != tenant or found["verb"] not in _VERBS:
        return None
    verb, details = Verb(found["verb"]), found.get("details", {})
    if verb in _DETAILS and not found.keys() >= _REQUIRED_OF_CHANGES:
        return None
    checks = _DETAILS.get(verb, {})
    return found if all(name not in details or check(details[name]) for name, check in checks.items()) else None


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def _is_text(value: Any) -> bool:
    """Whether a value is text that can be sent and stored: JSON can hold halves of surrogate pairs, and NUL."""
    if not isinstance(value, str) or "\0" in value:
        return False
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool)


def _is_number(bits: int) -> Check:
    """Return the check for what a signed number of so many `bits` can hold."""
    return lambda value: type(value) is int and -(1 << bits - 1) <= value < 1 << bits - 1


def _is_time(value: Any) -> bool:
    try:
        return _is_text(value) and datetime.fromisoformat(value).utcoffset() == timedelta()
    except ValueError:
        return False


def _one_of(values: Any) -> Check:
    known = frozenset(member.value for member in values)
    return lambda value: isinstance(value, str) and value in known


def _or_none(check: Check) -> Check:
    return lambda value: value is None or check(value)


def _all(check: Check) -> Check:
    return lambda value: isinstance(value, list) and all(map(check, value))


def _having(**checks: Check) -> Check:
    """Return the check for an object that has each of these fields."""
    return lambda value: (
        isinstance(value, dict) and all(name in value and check(value[name]) for name, check in checks.items())
    )


def _row_of(*checks: Check) -> Check:
    return lambda value: (
        isinstance(value, list)
        and len(value) == len(checks)
        and all(check(each) for check, each in zip(checks, value, strict=True))
    )


_NUMBER = _is_number(32)
_CANDIDATE = _having(
    layer=_one_of(LayerKind),
    state=_one_of(CandidateState),
    version=_or_none(_NUMBER),
    digest=_is_text,
    origin=_is_text,
)
_FIELDS: Mapping[str, Check] = {
    **dict.fromkeys(("tenant", "call_id", "verb", "actor", "key_id", "agent", "run_id", "requested", "name"), _is_text),
    **dict.fromkeys(("pin", "touched_path", "arguments_hmac", "reason", "allowlist_sha256", "agent_sha256"), _is_text),
    **dict.fromkeys(("static_digest", "filter", "entries_sha256", "server"), _is_text),
    **dict.fromkeys(("turn", "touched", "admitted", "left_out"), _NUMBER),
    **dict.fromkeys(("revision", "decide_us"), _is_number(64)),
    "id": lambda value: _is_text(value) and is_uuid(value),
    "time": _is_time,
    "outcome": _one_of(EventOutcome),
    "role": _one_of(Role),
    "caller_kind": _one_of(CallerKind),
    "drafts": _is_bool,
    "decision": _having(allowed=_is_bool, reason=_one_of(Reason), index=_or_none(_NUMBER), entry=_or_none(_is_text)),
    "candidates": _all(_CANDIDATE),
    "winner": _CANDIDATE,
    "details": lambda value: isinstance(value, dict) and _is_text(json.dumps(value, ensure_ascii=False)),
}
_REQUIRED = {"id", "tenant", "time", "call_id", "verb", "outcome"}
_REQUIRED_OF_CHANGES = {"actor", "server", "static_digest"}
_VERBS = frozenset(verb.value for verb in Verb)

_OF_CHANGES: Mapping[str, Check] = {
    "version": _or_none(_NUMBER),
    "promoted": _is_bool,
    "revision": _is_number(64),
    "author": _or_none(_is_text),
    "forked_from": _is_text,
    "reason": _is_text,
}
_DETAILS: Mapping[Verb, Mapping[str, Check]] = {
    **dict.fromkeys((Verb.CREATE, Verb.FORK, Verb.PROMOTE, Verb.RETIRE, Verb.UNRETIRE), _OF_CHANGES),
    **dict.fromkeys((Verb.DISABLE, Verb.ENABLE, Verb.SET_LABEL), _OF_CHANGES),
    Verb.IMPORT: {
        "skills": _all(_row_of(_is_text, _NUMBER, _is_bool, _is_text)),
        "promoted": _is_bool,
        "revision": _is_number(64),
    },
    Verb.LOAD_STATIC: {"previous": _is_text},
}
"""What is read of the details of an event; those of other verbs are only shown."""
