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
    assert (row[1:3], row[5:]) == (["runtime", "-"], ["-", "ci"])
    assert operator.ok("key", "revoke", tenant.name, key_id).text.startswith(f"Revoked {key_id} at 20")
    refused = command.refused("UNAUTHENTICATED", *listing, "--agent", "doc-manager")
    assert key not in refused.err
    row = next(row for row in operator.ok("key", "list", tenant.name).rows if row[0] == key_id)
    assert row[5] != "-"


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
