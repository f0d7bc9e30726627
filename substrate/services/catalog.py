"""The whole catalog as authors see it: every name, every layer's candidate and its state."""

from dataclasses import dataclass

from substrate.domain.audit import DecidingEntry, Verb, deciding_entry
from substrate.domain.candidates import Resolution
from substrate.domain.catalog import NameMode
from substrate.domain.identity import Role
from substrate.domain.names import SkillRef
from substrate.services.access import acting_agent, require_role
from substrate.services.call import Call
from substrate.services.decisions import Decisions
from substrate.services.pages import Page, page_of_names
from substrate.services.trace import Trace
from substrate.store import skill_defs


@dataclass(frozen=True, slots=True)
class CatalogRow:
    """A name with its resolution, its mode, its etag and, when the call acts as an agent, the allowlist's decision."""

    resolution: Resolution
    mode: NameMode
    decision: DecidingEntry | None
    etag: str = ""


class CatalogView:
    """The use case of `ListCatalog`."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions

    def list(self, call: Call, agent: str, pattern: str, page_size: int, page_token: str) -> Page[CatalogRow]:
        """Return one page of the catalog, by name; with an agent, of the names it is permitted."""

        def judge(trace: Trace) -> Page[CatalogRow]:
            require_role(trace, Role.AUTHOR)
            acting = acting_agent(trace, agent)
            catalog = trace.snapshot.catalog
            page = page_of_names(trace, catalog.names(), ("ListCatalog", agent), pattern, page_size, page_token)
            with self._decisions.database.tenant(trace.tenant, call.deadline, snapshot=True) as connection:
                etags = skill_defs.etags(connection, trace.tenant, page.rows)
            rows = []
            for name in page.rows:
                decision = deciding_entry(acting.allowlist, acting.allowlist.decide(name)) if acting else None
                rows.append(CatalogRow(catalog.resolve(SkillRef(name)), catalog.mode_of(name), decision, etags[name]))
            return page.of(rows)

        return self._decisions.settle(call, Verb.LIST_CATALOG, judge, required=False)
