"""Lists of SkillDefs and of the whole catalog: sorted, narrowed by pattern, and whole however they are paged."""

from typing import Any

import pytest

from substrate.api.v1 import catalog_pb2
from tests.servers import TestTenant
from tests.skills import changed, refused, skill_md

LAYERS = catalog_pb2.Layer
STATES = catalog_pb2.CandidateState

NAMES = ["a", "a/b", "a/b/c", "a/c", "b", "doc/mine", "doc/query", "z-1"]


@pytest.fixture
def full(tenant: TestTenant) -> TestTenant:
    """A tenant with some SkillDefs: `a/c` is retired, `b` is a draft, `doc/mine` is switched off."""
    for name in reversed(NAMES):
        source = skill_md(name.rpartition("/")[2])
        tenant.author.call("SkillDefService.CreateSkillDef", name=name, source=source, promote=name != "b")
    changed(tenant.author, "SkillDefService.RetireSkillDef", name="a/c")
    changed(tenant.author, "SkillDefService.SetSkillDisabled", name="doc/mine", disabled=True)
    return tenant


def _names(page: Any) -> list[str]:
    return [found.name for found in (page.skill_defs if hasattr(page, "skill_defs") else page.entries)]


def test_skill_defs_are_sorted_and_retired_ones_are_listed_when_asked_for(full: TestTenant) -> None:
    page = full.author.call("SkillDefService.ListSkillDefs")
    assert _names(page) == [name for name in NAMES if name != "a/c"]
    assert (page.total_size, page.next_page_token) == (7, "")
    whole = full.author.call("SkillDefService.ListSkillDefs", include_retired=True)
    assert (_names(whole), whole.total_size) == (NAMES, 8)
    states = {found.name: (found.retired, found.disabled, found.active_version) for found in whole.skill_defs}
    assert states["a/c"] == (True, False, 1)
    assert states["b"] == (False, False, 0)
    assert states["doc/mine"] == (False, True, 1)
    assert states["a"] == (False, False, 1)
    for found in whole.skill_defs:
        assert full.author.call("SkillDefService.GetSkillDef", name=found.name).skill_def == found


def test_a_retired_draft_is_retired_no_less(tenant: TestTenant) -> None:
    tenant.author.call("SkillDefService.CreateSkillDef", name="a", source=skill_md("a"), promote=False)
    assert changed(tenant.author, "SkillDefService.RetireSkillDef", name="a").skill_def.retired
    assert _names(tenant.author.call("SkillDefService.ListSkillDefs")) == []
    assert _names(tenant.author.call("SkillDefService.ListSkillDefs", include_retired=True)) == ["a"]
    (entry,) = tenant.author.call("SkillDefService.ListCatalog", pattern="a").entries
    assert [candidate.state for candidate in entry.candidates] == [STATES.CANDIDATE_STATE_RETIRED]


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ("a", ["a"]),
        ("a/*", ["a/b", "a/c"]),
        ("a/**", ["a", "a/b", "a/b/c", "a/c"]),
        ("*", NAMES),
        ("**", NAMES),
        ("?", ["a", "b"]),
        ("z*", ["z-1"]),
        ("nothing", []),
    ],
)
def test_a_pattern_narrows_what_is_listed_and_counted(full: TestTenant, pattern: str, expected: list[str]) -> None:
    page = full.author.call("SkillDefService.ListSkillDefs", pattern=pattern, include_retired=True)
    assert (_names(page), page.total_size) == (expected, len(expected))
    catalog = full.author.call("SkillDefService.ListCatalog", pattern=pattern)
    assert [name for name in _names(catalog) if name in NAMES] == expected


@pytest.mark.parametrize("pattern", ["+a", "-a", "a//b", "A", "a b", "a*-"])
def test_a_malformed_pattern_is_refused(tenant: TestTenant, pattern: str) -> None:
    for method in ("ListSkillDefs", "ListCatalog"):
        failed = refused(tenant.author, f"SkillDefService.{method}", pattern=pattern)
        assert (failed.code, failed.reason, failed.violations[0][0]) == (
            "INVALID_ARGUMENT",
            "INVALID_ARGUMENT",
            "pattern",
        )


@pytest.mark.parametrize("method", ["ListSkillDefs", "ListCatalog"])
@pytest.mark.parametrize("size", [1, 3, 1000, 5000])
def test_pages_make_up_the_whole_list(full: TestTenant, method: str, size: int) -> None:
    whole = _names(full.author.call(f"SkillDefService.{method}"))
    pages = [_names(page) for page in full.author.pages(f"SkillDefService.{method}", page_size=size)]
    assert [name for page in pages for name in page] == whole
    assert [len(page) for page in pages[:-1]] == [size] * (len(pages) - 1)
    assert len(pages) == -(-len(whole) // size)


def test_names_that_come_and_go_between_pages_hide_and_repeat_no_others(full: TestTenant) -> None:
    pages = full.author.pages("SkillDefService.ListSkillDefs", page_size=2)
    assert _names(next(pages)) == ["a", "a/b"]
    changed(full.author, "SkillDefService.RetireSkillDef", name="a/b")
    full.author.call("SkillDefService.CreateSkillDef", name="a/a", source=skill_md("a"))
    full.author.call("SkillDefService.CreateSkillDef", name="a/d", source=skill_md("d"))
    rest = [name for page in pages for name in _names(page)]
    assert rest == ["a/b/c", "a/d", "b", "doc/mine", "doc/query", "z-1"]


@pytest.mark.parametrize("method", ["ListSkillDefs", "ListCatalog"])
def test_a_page_token_is_good_for_its_own_request_alone(full: TestTenant, method: str) -> None:
    token = full.author.call(f"SkillDefService.{method}", page_size=1).next_page_token
    others: list[dict[str, object]] = [{"pattern": "a/**"}, {"agent": "doc-manager"}]
    if method == "ListSkillDefs":
        others.append({"include_retired": True})
    for other in others:
        failed = refused(full.author, f"SkillDefService.{method}", page_token=token, **other)
        assert (failed.code, failed.reason) == ("INVALID_ARGUMENT", "INVALID_PAGE_TOKEN")
        assert failed.violations[0][0] == "page_token"
    wrong = "ListCatalog" if method == "ListSkillDefs" else "ListSkillDefs"
    for other_method, other_token in ((wrong, token), (method, token[:-2]), (method, "x"), (method, token + "A")):
        failed = refused(full.author, f"SkillDefService.{other_method}", page_token=other_token)
        assert failed.reason == "INVALID_PAGE_TOKEN"
    # How large the next page is does not change which it is.
    assert _names(full.author.call(f"SkillDefService.{method}", page_size=2, page_token=token))[0] == "a/b"


def test_a_negative_page_size_is_refused(tenant: TestTenant) -> None:
    for method in ("ListSkillDefs", "ListCatalog"):
        failed = refused(tenant.author, f"SkillDefService.{method}", page_size=-1)
        assert (failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "page_size")


def test_the_catalog_shows_every_layers_say(full: TestTenant) -> None:
    entries = {entry.name: entry for entry in full.author.call("SkillDefService.ListCatalog", page_size=1000).entries}
    assert list(entries) == sorted(entries)
    assert set(NAMES) < set(entries)
    assert "marketing/analyze-competitors" in entries
    query = entries["doc/query"]
    assert [(c.layer, c.state) for c in query.candidates] == [
        (LAYERS.LAYER_TENANT, STATES.CANDIDATE_STATE_WON),
        (LAYERS.LAYER_BUNDLE, STATES.CANDIDATE_STATE_SHADOWED),
    ]
    assert query.winner == query.candidates[0]
    assert query.mode == catalog_pb2.NameMode.NAME_MODE_OPEN
    assert not query.HasField("decision")
    assert all(candidate.why for entry in entries.values() for candidate in entry.candidates)
    assert [c.state for c in entries["b"].candidates] == [STATES.CANDIDATE_STATE_DRAFT]
    assert [c.state for c in entries["a/c"].candidates] == [STATES.CANDIDATE_STATE_RETIRED]
    assert entries["doc/mine"].candidates[0].state == STATES.CANDIDATE_STATE_DISABLED
    for name in ("b", "a/c", "doc/mine"):
        assert not entries[name].HasField("winner")


def test_for_an_agent_the_catalog_holds_permitted_names_and_why(full: TestTenant) -> None:
    page = full.author.call("SkillDefService.ListCatalog", agent="doc-manager")
    assert {name.partition("/")[0] for name in _names(page)} == {"doc"}
    assert page.total_size == len(page.entries)
    for entry in page.entries:
        assert (entry.decision.allowed, entry.decision.index, entry.decision.entry) == (True, 0, "doc/*")
    assert _names(full.author.call("SkillDefService.ListSkillDefs", agent="doc-manager")) == ["doc/mine", "doc/query"]
    failed = refused(full.author, "SkillDefService.ListCatalog", agent="nobody")
    assert (failed.code, failed.reason, failed.metadata["agent"]) == ("NOT_FOUND", "AGENT_NOT_FOUND", "nobody")
