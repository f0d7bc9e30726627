"""The product's first promise, end to end: three layers, one gate, and a reason for every answer."""

import pytest

from substrate.rpc.client import CallFailed
from tests.servers import TestTenant
from tests.skills import changed

SOURCE = """---
name: chunk-review
description: Our own review of chunks.
allowed-tools: ReadChunk
---
# House review

Review $ARGUMENTS by our house rules.
"""


def test_a_tenants_skill_shadows_a_bundled_one_until_it_is_retired(tenant: TestTenant) -> None:
    listed = tenant.runtime.call("SkillService.ListSkills", agent="doc-manager")
    assert "doc/chunk-review" in [entry.name for entry in listed.skills]
    bundled = tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/chunk-review")
    assert bundled.origin.startswith("bundle:document-agent@")

    made = tenant.author.call("SkillDefService.CreateSkillDef", name="doc/chunk-review", source=SOURCE)
    assert [candidate.origin for candidate in made.shadows] == [bundled.origin]
    own = tenant.runtime.call(
        "SkillService.InvokeSkill", agent="doc-manager", name="doc/chunk-review", arguments="chunk 7"
    )
    assert own.origin == "tenant:v1"
    assert own.body == "# House review\n\nReview chunk 7 by our house rules.\n"

    told = tenant.author.call("AuditService.ExplainResolution", name="doc/chunk-review", agent="doc-manager")
    assert told.winner.origin == "tenant:v1"
    assert f"shadows {bundled.origin}" in told.text
    assert [(trial.entry, trial.decided) for trial in told.trials] == [("doc/*", True)]

    changed(tenant.author, "SkillDefService.RetireSkillDef", name="doc/chunk-review")
    again = tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="doc/chunk-review")
    assert again.body == bundled.body


def test_a_name_outside_the_allowlist_is_refused_with_a_typed_error(tenant: TestTenant) -> None:
    with pytest.raises(CallFailed) as refused:
        tenant.runtime.call("SkillService.InvokeSkill", agent="doc-manager", name="writing/linkedin-post")
    assert (refused.value.code, refused.value.reason) == ("PERMISSION_DENIED", "SKILL_NOT_PERMITTED")
    assert refused.value.metadata["decision"] == "UNLISTED"
    found = tenant.author.call("AuditService.QueryAuditEvents", decision_id=refused.value.decision_id)
    assert [event.reason for event in found.events] == ["SKILL_NOT_PERMITTED"]
