"""An agent that may author sees its own events, and must not learn from them of names that it may not use."""

from substrate.domain.identity import Role
from tests.servers import TestTenant
from tests.skills import skill_md


def test_a_list_counts_nothing_of_what_the_allowlist_keeps_away(tenant: TestTenant) -> None:
    tenant.author.call("AgentService.PutAgent", agent={"name": "caged", "skills": ["doc/*"]})
    tenant.author.call("SkillDefService.CreateSkillDef", name="payroll/secret", source=skill_md("secret"))
    caged = tenant.bound(Role.AUTHOR, "caged")
    seen = []
    for pattern in ("payroll/secret", "payroll/nothing"):
        answer = caged.call("SkillService.ListSkills", agent="caged", pattern=pattern)
        (event,) = caged.call("AuditService.QueryAuditEvents", decision_id=answer.decision_id).events
        seen.append((answer.total_size, event.admitted_count, event.left_out_count, event.entries_sha256))
    assert seen[0] == seen[1]
