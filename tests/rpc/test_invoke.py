"""InvokeSkill: the text of one skill, for those who may have it."""

from collections.abc import Iterator

import pytest

from tests.rpc.rich import rich_server, rich_tenant
from tests.servers import Cluster, TestTenant
from tests.skills import changed, refused, skill_md

INVOKE = "SkillService.InvokeSkill"


@pytest.fixture(scope="module")
def rich(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[TestTenant]:
    with rich_server(cluster, tmp_path_factory.mktemp("rich")) as server:
        yield rich_tenant(server)


def test_arguments_stand_where_the_body_asks_for_them(rich: TestTenant) -> None:
    body = "All: {}\nFirst: {}\nSecond: {}\nFormat: {}\nCosts $1.\n"
    for arguments, parts in {
        'a.md "b c"': ('a.md "b c"', "a.md", "b c", "b c"),
        "$ARGUMENTS $0": ("$ARGUMENTS $0", "$ARGUMENTS", "$0", "$0"),
        "": ("", "$0", "$ARGUMENTS[1]", ""),
    }.items():
        invoked = rich.runtime.call(INVOKE, agent="docs", name="doc/arguments", arguments=arguments)
        assert invoked.body == body.format(*parts)
    one_based = rich.runtime.call(INVOKE, agent="docs", name="doc/inline", arguments="x y")
    assert one_based.body == "One: x, two: y."
    plain = rich.runtime.call(INVOKE, agent="docs", name="doc/plain", arguments="x y")
    assert plain.body == "Plainly.\n\nARGUMENTS: x y"


def test_arguments_of_128_kib_are_taken_and_more_are_refused(rich: TestTenant) -> None:
    most = "a" * (128 * 1024)
    assert most in rich.runtime.call(INVOKE, agent="docs", name="doc/plain", arguments=most).body
    failed = refused(rich.runtime, INVOKE, agent="docs", name="doc/plain", arguments=most + "a")
    assert (failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "arguments")


def test_the_folder_of_a_skill_is_the_callers_or_one_that_names_the_skill(rich: TestTenant) -> None:
    asked = {"agent": "docs", "name": "doc/files"}
    assert rich.runtime.call(INVOKE, **asked).body == "See skill://doc/files/references/guide.md.\n"
    assert rich.runtime.call(INVOKE, skill_dir="/work/x", **asked).body == "See /work/x/references/guide.md.\n"
    for folder in ("x" * 513, "a\nb", "a\0b"):
        failed = refused(rich.runtime, INVOKE, skill_dir=folder, **asked)
        assert (failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", "skill_dir")


def test_an_answer_says_what_the_skill_is_and_where_it_comes_from(rich: TestTenant) -> None:
    bundled = rich.runtime.call(INVOKE, agent="shell", name="code/write")
    assert (bundled.name, bundled.version) == ("code/write", 0)
    assert bundled.origin == "bundle:core@1.10/skills/code/write/SKILL.md"
    assert list(bundled.allowed_tools) == ["Read", "Write", "Bash(git *)"]
    inline = rich.runtime.call(INVOKE, agent="docs", name="doc/inline")
    assert inline.origin == "inline:substrate.yaml#skills.doc/inline"
    own = rich.runtime.call(INVOKE, agent="docs", name="doc/own")
    assert (own.origin, own.version, own.body) == ("tenant:v1", 1, "From the tenant.\n")
    assert [bundled.layer, inline.layer, own.layer] == [3, 2, 1]


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("doc/shadowed", "From the tenant.\n"),
        ("doc/shadowed@v1", "From the tenant.\n"),
        ("doc/shadowed@inline", "From the config."),
        ("doc/shadowed@bundle", "From the bundle.\n"),
        ("doc/plain@bundle", "Plainly.\n"),
        ("doc/old", "From the bundle.\n"),
        ("doc/old@bundle", "From the bundle.\n"),
    ],
)
def test_a_qualifier_reaches_what_stands_behind(rich: TestTenant, name: str, body: str) -> None:
    invoked = rich.runtime.call(INVOKE, agent="docs", name=name)
    assert (invoked.name, invoked.body) == (name.partition("@")[0], body)


@pytest.mark.parametrize(
    ("name", "code", "reason"),
    [
        ("doc/missing", "NOT_FOUND", "SKILL_NOT_FOUND"),
        ("doc/missing@bundle", "NOT_FOUND", "SKILL_NOT_FOUND"),
        ("doc/plain@inline", "NOT_FOUND", "SKILL_NOT_FOUND"),
        ("doc/plain@v1", "NOT_FOUND", "VERSION_NOT_FOUND"),
        ("doc/own@v2", "NOT_FOUND", "VERSION_NOT_FOUND"),
        ("doc/own@v999999999", "NOT_FOUND", "VERSION_NOT_FOUND"),
        ("doc/draft", "NOT_FOUND", "SKILL_NOT_FOUND"),
        ("doc/draft@v1", "NOT_FOUND", "VERSION_NOT_FOUND"),
        ("doc/old@v1", "NOT_FOUND", "VERSION_NOT_FOUND"),
        ("doc/off", "NOT_FOUND", "SKILL_NOT_FOUND"),
        ("doc/off@bundle", "NOT_FOUND", "SKILL_NOT_FOUND"),
        ("doc/broken", "FAILED_PRECONDITION", "SKILL_QUARANTINED"),
        ("doc/broken@bundle", "FAILED_PRECONDITION", "SKILL_QUARANTINED"),
    ],
)
def test_what_cannot_be_reached_is_refused(rich: TestTenant, name: str, code: str, reason: str) -> None:
    failed = refused(rich.runtime, INVOKE, agent="docs", name=name)
    assert (failed.code, failed.reason) == (code, reason)
    assert failed.metadata["name"] == name.partition("@")[0]
    gated = refused(rich.runtime, INVOKE, agent="not-docs", name=name)
    assert (gated.code, gated.reason) == ("PERMISSION_DENIED", "SKILL_NOT_PERMITTED")


def test_a_tombstone_and_a_retirement_bar_what_a_qualifier_reached_before(rich: TestTenant) -> None:
    source = skill_md("lent")
    rich.author.call("SkillDefService.CreateSkillDef", name="doc/lent", source=source)
    asked = {"agent": "docs", "name": "doc/lent@v1"}
    assert rich.runtime.call(INVOKE, **asked).version == 1
    changed(rich.author, "SkillDefService.RetireSkillDef", name="doc/lent")
    assert refused(rich.runtime, INVOKE, **asked).code == "NOT_FOUND"
    changed(rich.author, "SkillDefService.RetireSkillDef", name="doc/lent", retired=False)
    assert rich.runtime.call(INVOKE, **asked).version == 1
    changed(rich.author, "SkillDefService.SetSkillDisabled", name="doc/lent", disabled=True)
    assert refused(rich.runtime, INVOKE, **asked).reason == "SKILL_NOT_FOUND"
    changed(rich.author, "SkillDefService.SetSkillDisabled", name="doc/lent")
    assert rich.runtime.call(INVOKE, **asked).version == 1
    changed(rich.author, "SkillDefService.RetireSkillDef", name="doc/lent")


@pytest.mark.parametrize("name", ["doc/own@", "doc/own@v0", "doc/own@v01", "doc/own@latest", "doc/own@v1@v1", "@v1"])
def test_a_qualifier_that_is_none_is_refused(rich: TestTenant, name: str) -> None:
    failed = refused(rich.runtime, INVOKE, agent="docs", name=name)
    assert (failed.reason, [field for field, _ in failed.violations]) == ("INVALID_NAME", ["name"])


def test_suggestions_are_names_that_the_agent_may_see(rich: TestTenant) -> None:
    meant = refused(rich.runtime, INVOKE, agent="docs", name="doc/plan")
    assert meant.metadata["suggestions"].split(",")[0] == "doc/plain"
    hidden = refused(rich.runtime, INVOKE, agent="docs-but", name="doc/of")
    assert "doc/off" not in hidden.metadata.get("suggestions", "")
    assert "doc/plain" not in refused(rich.runtime, INVOKE, agent="docs-but", name="doc/lain").message
    assert "suggestions" not in refused(rich.runtime, INVOKE, agent="docs", name="doc/zzzzzzzz").metadata


def test_a_digest_that_is_not_the_expected_one_is_refused_with_the_one_that_is(rich: TestTenant) -> None:
    name = "doc/expected"
    rich.author.call("SkillDefService.CreateSkillDef", name=name, source=skill_md("expected"))
    asked = {"agent": "docs", "name": name}
    digest = rich.runtime.call(INVOKE, **asked).content_sha256
    assert rich.runtime.call(INVOKE, expected_digest=digest, **asked).content_sha256 == digest
    for wrong in ("0" * 64, digest[:-1], digest.upper(), "x"):
        failed = refused(rich.runtime, INVOKE, expected_digest=wrong, **asked)
        assert (failed.code, failed.reason) == ("ABORTED", "SKILL_CHANGED")
        assert failed.metadata["content_sha256"] == digest
    changed(rich.author, "SkillDefService.RetireSkillDef", name=name)


@pytest.mark.parametrize(
    ("agent", "lacking"),
    [("everything", ""), ("shell", ""), ("reader", "Write, Bash(git *)"), ("handless", "Read, Write, Bash(git *)")],
)
def test_a_skill_never_gets_tools_that_its_agent_lacks(rich: TestTenant, agent: str, lacking: str) -> None:
    asked = {"agent": agent, "name": "code/write"}
    if not lacking:
        assert rich.runtime.call(INVOKE, **asked).body
        return
    failed = refused(rich.runtime, INVOKE, **asked)
    assert (failed.code, failed.reason) == ("FAILED_PRECONDITION", "TOOLS_EXCEED_AGENT")
    assert failed.metadata | {"decision_id": ""} == {
        "name": "code/write",
        "agent": agent,
        "tools": lacking,
        "decision_id": "",
    }
    assert rich.runtime.call(INVOKE, agent=agent, name="code/none").body


@pytest.mark.parametrize(
    ("name", "kinds"), [("call/user", {"USER"}), ("call/model", {"MODEL"}), ("call/nobody", set()), ("top", None)]
)
def test_a_skill_may_exclude_either_kind_of_caller(rich: TestTenant, name: str, kinds: set[str] | None) -> None:
    for kind in ("UNSPECIFIED", "MODEL", "USER"):
        asked = {"agent": "everything", "name": name, "caller_kind": f"CALLER_KIND_{kind}"}
        meant = "MODEL" if kind == "UNSPECIFIED" else kind
        if kinds is None or meant in kinds:
            assert rich.runtime.call(INVOKE, **asked).body == "Do it.\n"
        else:
            failed = refused(rich.runtime, INVOKE, **asked)
            assert (failed.code, failed.reason) == ("FAILED_PRECONDITION", "INVOCATION_NOT_ALLOWED")
            assert (failed.metadata["name"], failed.metadata["caller_kind"]) == (name, meant)


@pytest.mark.parametrize(
    ("paths", "eligible"),
    [
        ([], False),
        (["src/a.py"], True),
        (["src/a/b/c.py"], True),
        (["README.md"], True),
        (["docs/README.md"], False),
        (["lib/a.py", "./src/a.py"], True),
        (["source/a.py"], False),
        (["src"], True),
    ],
)
def test_a_skill_for_certain_paths_needs_one_of_them(rich: TestTenant, paths: list[str], *, eligible: bool) -> None:
    asked = {"agent": "everything", "name": "code/lint", "touched_paths": paths}
    if eligible:
        assert rich.runtime.call(INVOKE, **asked).body == "Do it.\n"
    else:
        failed = refused(rich.runtime, INVOKE, **asked)
        assert (failed.code, failed.reason) == ("FAILED_PRECONDITION", "SKILL_INELIGIBLE")


@pytest.mark.parametrize(
    ("paths", "field"), [(["a"] * 257, "touched_paths"), (["a", ""], "touched_paths[1]"), (["a" * 513], None)]
)
def test_paths_out_of_bounds_are_refused(rich: TestTenant, paths: list[str], field: str | None) -> None:
    failed = refused(rich.runtime, INVOKE, agent="docs", name="doc/plain", touched_paths=paths)
    assert (failed.reason, failed.violations[0][0]) == ("INVALID_ARGUMENT", field or "touched_paths[0]")
