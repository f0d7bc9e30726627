"""Every change of what a name stood for in a tenant: by its authors and operators, and by what servers loaded.

Two chains tell it, the tenant's and the platform's. Both are read from their ends, in chunks, and laid side by side by
time. A server that starts with what another serves already has changed nothing. Where servers serve different bundles
at one time, an author's change is told as the server saw it that made it.
"""

import re
from datetime import datetime

from substrate.domain.audit import Verb
from substrate.domain.chain import Ends
from substrate.domain.errors import InvalidPageToken
from substrate.domain.names import PLATFORM_TENANT, parse_skill_name
from substrate.domain.tokens import page_token, read_page_token
from substrate.services.access import require_unbound, subject_of
from substrate.services.call import Call
from substrate.services.decisions import Decisions
from substrate.services.pages import Page, page_limit
from substrate.services.past import Past, SkillChange, Statics
from substrate.services.trace import Trace
from substrate.store import audit_chain, tenants

_POSITIONS = re.compile(r"([0-9]{1,18})\.([0-9]{1,18})", re.ASCII)


class History:
    """The use case of `GetSkillHistory`."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._statics = Statics(decisions.database)

    def history(
        self, call: Call, tenant: str, name: str, since: datetime | None, page_size: int, token: str
    ) -> Page[SkillChange]:
        """Return one page of changes, the newest first; a page may be short and not be the last."""

        def judge(trace: Trace) -> Page[SkillChange]:
            subject = subject_of(trace, tenant)
            require_unbound(trace)
            trace.requested = name
            bare = trace.name = parse_skill_name(name)
            limit = page_limit(page_size)
            bound = ("GetSkillHistory", trace.principal.tenant, subject, bare, since)
            positions = _positions(read_page_token(token, *bound))
            database = self._decisions.database
            with database.tenant(subject, call.deadline) as connection:
                found = tenants.get(connection, subject)
                end = audit_chain.ends(connection, subject)
            if found is None:
                raise tenants.no_tenant(subject)
            if positions is None:
                # Both ends are fixed for all pages: what happens from now on belongs to none of them.
                with database.tenant(PLATFORM_TENANT, call.deadline) as connection:
                    positions = _after(end), _after(audit_chain.ends(connection, PLATFORM_TENANT))
            past = Past(call, database, self._statics, subject, bare, positions)
            changes, following = past.page(found.created_at, since, limit)
            trace.admitted = len(changes)
            return Page(changes, page_token("{}.{}".format(*following), *bound) if following else "")

        return self._decisions.settle(call, Verb.GET_HISTORY, judge, required=False)


def _after(ends: Ends) -> int:
    """Return the position after the last event of a chain."""
    last = max(ends.head.sequence if ends.head else 0, ends.last_sequence or 0)
    return last + 1


def _positions(key: str) -> tuple[int, int] | None:
    """Return the positions in both chains that a token's `key` names, None for their ends; raise InvalidPageToken."""
    if not key:
        return None
    found = _POSITIONS.fullmatch(key)
    if found is None:
        raise InvalidPageToken("page_token", "The page token was not issued by this server; start again.")
    return int(found[1]), int(found[2])
