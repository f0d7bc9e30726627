"""ListSkills: what an agent can invoke, no more and no less, in pages that fit together."""

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from substrate.domain.tokens import page_token
from substrate.rpc.client import CallFailed
from tests.rpc.rich import AGENTS, EVERY_NAME, rich_server, rich_tenant
from tests.servers import Cluster, TestTenant
from tests.skills import changed, refused, skill_md

LIST = "SkillService.ListSkills"
KINDS = ("CALLER_KIND_MODEL", "CALLER_KIND_USER")


@pytest.fixture(scope="module")
def rich(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestTenant]:
    with rich_server(cluster, tmp_path_factory.mktemp("rich")) as server:
        yield rich_tenant(server)


def names(tenant: TestTenant, **asked: object) -> list[str]:
    return [entry.name for entry in tenant.runtime.call(LIST, **asked).skills]


def can_invoke(tenant: TestTenant, **asked: object) -> bool:
    try:
        tenant.runtime.call("SkillService.InvokeSkill", **asked)
    except CallFailed as failed:
        if failed.code not in ("PERMISSION_DENIED", "NOT_FOUND", "FAILED_PRECONDITION"):
            raise
        return False
    return True


@settings(max_examples=25, deadline=None)
@given(
    agent=st.sampled_from(sorted(AGENTS)),
    kind=st.sampled_from(KINDS),
    paths=st.lists(st.sampled_from(["src/a.py", "README.md", "docs/a.md", "/src/b", "./src/c"]), max_size=2),
)
def test_every_name_that_is_listed_can_be_invoked_and_no_other(
    rich: TestTenant, agent: str, kind: str, paths: list[str]
) -> None:
    asked = {"agent": agent, "caller_kind": kind, "touched_paths": paths}
    known = [entry.name for entry in rich.author.call("SkillDefService.ListCatalog", page_size=1000).entries]
    assert {*known, "doc/missing"} == set(EVERY_NAME)
    assert names(rich, **asked) == [name for name in EVERY_NAME if can_invoke(rich, name=name, **asked)]


def test_the_same_list_as_the_rules_of_each_skill_say(rich: TestTenant) -> None:
    everything = {"code/none", "code/write", "doc/arguments", "doc/files", "doc/inline", "doc/many", "doc/old"}
    everything |= {"doc/own", "doc/plain", "doc/shadowed", "top"}
    docs = {name for name in everything if name.startswith("doc/")}
    assert names(rich, agent="everything") == sorted({*everything, "call/model"})
    assert names(rich, agent="everything", caller_kind="CALLER_KIND_USER") == sorted({*everything, "call/user"})
    assert names(rich, agent="everything", touched_paths=["src/a/b.py"]) == sorted(
        {*everything, "call/model", "code/lint"}
    )
    assert names(rich, agent="everything", touched_paths=["lib/README.md"]) == names(rich, agent="everything")
    assert names(rich, agent="nothing") == []
    assert names(rich, agent="docs") == sorted(docs)
    assert names(rich, agent="docs-but") == sorted(docs - {"doc/plain"})
    assert names(rich, agent="not-docs") == sorted((everything - docs) | {"call/model"})
    assert names(rich, agent="reader") == sorted((everything - {"code/write"}) | {"call/model"})
    assert names(rich, agent="shell") == names(rich, agent="everything")


def test_an_entry_says_what_the_skill_says_of_itself_and_no_more(rich: TestTenant) -> None:
    listed = {entry.name: entry for entry in rich.runtime.call(LIST, agent="docs").skills}
    entry = listed["doc/arguments"]
    assert (entry.description, entry.when_to_use, entry.argument_hint) == (
        "Does it.",
        "For arguments.",
        "[path] [format]",
    )
    assert listed["doc/plain"].description == "A plain one & <simple>."
    for name, entry in listed.items():
        invoked = rich.runtime.call("SkillService.InvokeSkill", agent="docs", name=name)
        assert entry.content_sha256 == invoked.content_sha256
        assert invoked.body.strip() not in str(entry)


@pytest.mark.parametrize("page_size", [1, 2, 3, 7, 1000, 2**31 - 1])
def test_all_pages_together_are_the_list(rich: TestTenant, page_size: int) -> None:
    whole = rich.runtime.call(LIST, agent="everything")
    pages = list(rich.runtime.pages(LIST, agent="everything", page_size=page_size))
    assert [entry for page in pages for entry in page.skills] == list(whole.skills)
    assert {page.total_size for page in pages} == {len(whole.skills)}
    assert all(len(page.skills) == page_size for page in pages[:-1])
    assert 1 <= len(pages[-1].skills) <= page_size
    assert whole.next_page_token == ""


def test_pages_do_not_repeat_or_miss_a_name_while_others_come_and_go(rich: TestTenant) -> None:
    page = rich.runtime.call(LIST, agent="docs", page_size=2)
    seen = [entry.name for entry in page.skills]
    before = names(rich, agent="docs")
    rich.author.call("SkillDefService.CreateSkillDef", name="doc/aa", source=skill_md("aa"))
    changed(rich.author, "SkillDefService.SetSkillDisabled", name=before[0], disabled=True)
    rest = rich.runtime.call(LIST, agent="docs", page_token=page.next_page_token)
    assert seen + [entry.name for entry in rest.skills] == before
    changed(rich.author, "SkillDefService.SetSkillDisabled", name="doc/aa", disabled=True)
    changed(rich.author, "SkillDefService.SetSkillDisabled", name=before[0], disabled=False)
    assert names(rich, agent="docs") == before


def test_a_page_token_is_good_for_the_request_it_was_given_for_alone(rich: TestTenant) -> None:
    base: dict[str, Any] = {"agent": "everything", "pattern": "doc/*", "touched_paths": ["src/a.py"]}
    token = rich.runtime.call(LIST, page_size=2, **base).next_page_token
    assert names(rich, page_token=token, **base)
    changes: list[dict[str, Any]] = [
        {"agent": "docs"},
        {"pattern": ""},
        {"pattern": "doc/**"},
        {"caller_kind": "CALLER_KIND_USER"},
        {"touched_paths": []},
        {"touched_paths": ["src/a.py", "b"]},
    ]
    for change in changes:
        failed = refused(rich.runtime, LIST, page_token=token, **(base | change))
        assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_PAGE_TOKEN")
        assert [field for field, _ in failed.violations] == ["page_token"]
    for method in ("SkillDefService.ListSkillDefs", "SkillDefService.ListCatalog", "AgentService.ListAgents"):
        assert refused(rich.author, method, page_token=token).reason == "INVALID_PAGE_TOKEN"


def test_an_altered_page_token_is_refused(rich: TestTenant) -> None:
    token = rich.runtime.call(LIST, agent="everything", page_size=2).next_page_token
    after, *rest = json.loads(base64.urlsafe_b64decode(token + "=="))
    elsewhere = [respelt([value, *rest]) for value in ("", "zzz", after + "-", "doc/\0", 7, None, ["doc/x"])]
    cut_short = [token[:-1], token[1:], token + "A", token.swapcase(), token[::-1], "AAAA", "=", "\u00fc"]
    forged = [page_token("zzz", "ListSkills"), respelt([]), respelt({}), respelt("x"), respelt([after, *rest, 1])]
    for spoilt in (*elsewhere, *cut_short, *forged):
        failed = refused(rich.runtime, LIST, agent="everything", page_token=spoilt)
        assert (failed.code, failed.reason, spoilt) == ("INVALID_ARGUMENT", "INVALID_PAGE_TOKEN", spoilt)


def respelt(value: object) -> str:
    return base64.urlsafe_b64encode(json.dumps(value, separators=(",", ":")).encode()).decode().rstrip("=")


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("doc/p*", ["doc/plain"]),
        ("doc/plain", ["doc/plain"]),
        ("*/own", ["doc/own"]),
        ("t?p", ["top"]),
        ("code/**", ["code/none", "code/write"]),
        ("none/*", []),
        ("doc", []),
    ],
)
def test_a_pattern_narrows_the_list(rich: TestTenant, pattern: str, expected: list[str]) -> None:
    answer = rich.runtime.call(LIST, agent="everything", pattern=pattern)
    assert [entry.name for entry in answer.skills] == expected
    assert answer.total_size == len(expected)


@pytest.mark.parametrize("pattern", ["*", "**", ""])
def test_a_pattern_for_every_name_narrows_nothing(rich: TestTenant, pattern: str) -> None:
    assert names(rich, agent="everything", pattern=pattern) == names(rich, agent="everything")


@pytest.mark.parametrize(
    "pattern", ["+doc/*", "-doc/*", "Doc/*", "doc/", "/doc", "doc//x", "a**b", " ", "doc/../x", "d\u043ec", "a" * 257]
)
def test_a_pattern_that_is_none_is_refused(rich: TestTenant, pattern: str) -> None:
    failed = refused(rich.runtime, LIST, agent="everything", pattern=pattern)
    assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_ARGUMENT")
    assert [field for field, _ in failed.violations] == ["pattern"]


@pytest.mark.parametrize("page_size", [-1, -(2**31)])
def test_a_negative_page_size_is_refused(rich: TestTenant, page_size: int) -> None:
    failed = refused(rich.runtime, LIST, agent="everything", page_size=page_size)
    assert (failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "page_size")
