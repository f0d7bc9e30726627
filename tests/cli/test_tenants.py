from tests.cli.commands import CommandLine
from tests.servers import TestTenant


def test_create_and_list(operator: CommandLine, tenant: TestTenant) -> None:
    name = f"{tenant.name}-b"
    assert operator.ok("tenant", "create", name, "--display-name", "B & Söhne").text == f"Created tenant {name}.\n"
    printed = operator.ok("tenant", "list")
    line = next(line for line in printed.text.splitlines() if line.startswith(f"{name} "))
    assert "B & Söhne" in line
    assert name in [entry["tenant"] for entry in operator.ok("tenant", "list", "--json").json["tenants"]]
    operator.refused("TENANT_EXISTS", "tenant", "create", name)
    operator.refused("INVALID_NAME", "tenant", "create", "No Name")


def test_an_issued_key_works_until_it_is_revoked(
    operator: CommandLine, command: CommandLine, tenant: TestTenant
) -> None:
    issued = operator.ok("key", "issue", tenant.name, "--role", "runtime", "--label", "ci", "--expires", "30d")
    key = issued.text.removesuffix("\n")
    assert key.startswith(f"sub_{tenant.name}.")
    assert issued.err.startswith("Key ")
    assert key not in issued.err
    listing = ("skill", "list", "--address", tenant.server.address, "--key", key)
    command.ok(*listing, "--agent", "doc-manager")

    key_id = issued.err.removeprefix("Key ").partition(";")[0]
    row = next(row for row in operator.ok("key", "list", tenant.name).rows if row[0] == key_id)
    assert (row[1:4], row[6], row[8]) == (["runtime", "-", key_id], "-", "ci")
    # It has been used.
    assert row[7].startswith("20")
    assert operator.ok("key", "revoke", tenant.name, key_id).text.startswith(f"Revoked {key_id} at 20")
    refused = command.refused("UNAUTHENTICATED", *listing, "--agent", "doc-manager")
    assert key not in refused.err
    row = next(row for row in operator.ok("key", "list", tenant.name).rows if row[0] == key_id)
    assert row[6] != "-"


def test_a_rotated_key_works_beside_the_one_before(
    operator: CommandLine, command: CommandLine, tenant: TestTenant
) -> None:
    issued = operator.ok("key", "issue", tenant.name, "--role", "runtime", "--principal", "ada")
    old_id = issued.err.removeprefix("Key ").partition(";")[0]
    rotated = operator.ok("key", "rotate", tenant.name, old_id, "--overlap", "2h", "--expires", "90d")
    new_id = rotated.err.removeprefix("Key ").partition(";")[0]
    assert f" {old_id} is accepted until 20" in rotated.err
    old, new = (printed.text.removesuffix("\n") for printed in (issued, rotated))
    listing = ("skill", "list", "--agent", "doc-manager", "--address", tenant.server.address)
    for key in (old, new):
        command.ok(*listing, "--key", key)
    printed = operator.ok("key", "list", tenant.name)
    for header in ("PRINCIPAL", "LAST USED"):
        assert header in printed.text.splitlines()[0]
    rows = {row[0]: row for row in printed.rows}
    assert [rows[key_id][3] for key_id in (old_id, new_id)] == ["ada", "ada"]
    at_once = operator.ok("key", "rotate", tenant.name, new_id, "--overlap", "0s", "--json").json
    assert at_once["key"]["principal"] == "ada"
    command.refused("UNAUTHENTICATED", *listing, "--key", new)
    operator.refused("KEY_NOT_FOUND", "key", "rotate", tenant.name, new_id)
    assert "is no length of time" in operator.misused("key", "rotate", tenant.name, old_id, "--overlap", "soon")
    for overlap in ("91d", f"{10**8}d"):
        operator.refused("INVALID_ARGUMENT", "key", "rotate", tenant.name, old_id, "--overlap", overlap)


def test_suspend_and_resume(operator: CommandLine, runtime: CommandLine, tenant: TestTenant) -> None:
    suspended = operator.ok("tenant", "suspend", tenant.name, "--reason", "unpaid")
    assert suspended.text.startswith(f"Tenant {tenant.name} is suspended since 20")
    refused = runtime.refused("TENANT_SUSPENDED", "skill", "list", "--agent", "doc-manager")
    assert refused.fact("suspend_reason") == "unpaid"
    line = next(line for line in operator.ok("tenant", "list").text.splitlines() if line.startswith(f"{tenant.name} "))
    assert line.split()[-1].startswith("20")
    assert operator.ok("tenant", "resume", tenant.name).text == f"Tenant {tenant.name} is not suspended.\n"
    runtime.ok("skill", "list", "--agent", "doc-manager")
    line = next(line for line in operator.ok("tenant", "list").text.splitlines() if line.startswith(f"{tenant.name} "))
    assert line.split()[-1] == "-"


def test_quotas_are_shown_and_changed_one_by_one(operator: CommandLine, tenant: TestTenant) -> None:
    shown = {name: (limit, used) for name, limit, used in operator.ok("tenant", "quotas", tenant.name).rows}
    assert shown["skills"] == ("10000", "0")
    assert shown["allowlist_entries"] == ("200", "-")
    operator.ok("tenant", "quotas", tenant.name, "--set", "agents=7")
    changed = operator.ok("tenant", "quotas", tenant.name, "--set", "skills=20000", "--set", "writes_per_minute=9")
    shown = {name: (limit, used) for name, limit, used in changed.rows}
    assert [shown[name][0] for name in ("skills", "agents", "writes_per_minute", "bytes")] == [
        "20000",
        "7",
        "9",
        "268435456",
    ]
    assert operator.ok("tenant", "quotas", tenant.name, "--json").json["quotas"]["agents"] == 7
    operator.refused("INVALID_ARGUMENT", "tenant", "quotas", tenant.name, "--set", "allowlist_entries=201")
    operator.refused("TENANT_NOT_FOUND", "tenant", "quotas", "nobody")
    for wrong in ("skill=1", "skills", "skills=", "skills=-1", "skills=1.5", "skills=²", "=5"):
        assert "is not NAME=NUMBER" in operator.misused("tenant", "quotas", tenant.name, "--set", wrong)
    assert "cannot be sent" in operator.misused("tenant", "quotas", tenant.name, "--set", f"skills={2**63}")


def test_a_key_bound_to_an_agent_needs_no_agent_named(
    operator: CommandLine, command: CommandLine, tenant: TestTenant
) -> None:
    answer = operator.ok("key", "issue", tenant.name, "--role", "runtime", "--agent", "writer", "--json").json
    assert answer["key"]["agent"] == "writer"
    bound = command.with_options("--address", tenant.server.address, "--key", answer["secret"])
    assert [row[0] for row in bound.ok("skill", "list").rows] == ["writing/linkedin-post", "writing/style-check"]
    bound.refused("ROLE_REQUIRED", "skill", "list", "--agent", "doc-manager")


def test_what_operators_may_not_ask_for(operator: CommandLine, author: CommandLine, tenant: TestTenant) -> None:
    operator.refused("INVALID_ARGUMENT", "key", "issue", tenant.name, "--role", "operator")
    operator.refused("TENANT_NOT_FOUND", "key", "issue", "nobody", "--role", "author")
    operator.refused("KEY_NOT_FOUND", "key", "revoke", tenant.name, "absent")
    author.refused("ROLE_REQUIRED", "tenant", "list")
    author.refused("ROLE_REQUIRED", "key", "issue", tenant.name, "--role", "author")


def test_wrong_usage(operator: CommandLine, tenant: TestTenant) -> None:
    assert "Missing option '--role'" in operator.misused("key", "issue", tenant.name)
    assert "--role" in operator.misused("key", "issue", tenant.name, "--role", "king")
    assert "is neither a distance" in operator.misused(
        "key", "issue", tenant.name, "--role", "author", "--expires", "x"
    )
