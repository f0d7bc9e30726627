"""The repository as a whole: what its pages promise is there, and the package holds what the server needs."""

import dataclasses
import os
import re
import sys
import tomllib
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from substrate.domain.audit import AuditEvent, Verb
from substrate.rpc.agents import AgentServicer
from substrate.rpc.audit import AuditServicer
from substrate.rpc.skill_defs import SkillDefServicer
from substrate.rpc.skills import SkillServicer
from substrate.rpc.tenants import TenantServicer
from substrate.settings import Settings
from tests.processes import COMMAND, run
from tests.rpc.wire import METHODS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
SERVICERS = (SkillServicer, SkillDefServicer, AgentServicer, TenantServicer, AuditServicer)
MAX_LINES = 350

# Each is written in two parts, so that this file does not find itself.
FOREIGN = [
    "pypi" + r"\.org",
    "python" + r"hosted\.org",
    "npm" + r"js\.(?:org|com)",
    "proxy" + r"\.golang\.org",
    "crates" + r"\.io",
    "--(?:extra-)?index" + "-url",
    "/work" + r"/(?:main|shared|\.)",
    r"\.\./" + r"shared\b",
    "/Users" + r"/\w",
    "/root" + r"/\.?\w",
    "helper " + "session",
]


def files() -> Iterator[Path]:
    """Yield every file that belongs to the project, whether or not it is under version control here."""
    yield from (path for path in ROOT.iterdir() if path.is_file())
    for top in (".ci", "bundles", "docs", "migrations", "protos", "substrate", "tests"):
        yield from (path for path in (ROOT / top).rglob("*") if path.is_file() and path.suffix != ".pyc")


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the table below a heading of the README."""
    section = README.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    return [line.strip("| ").split(" | ") for line in section.splitlines() if line.startswith("| `")]


def test_the_folder_map_leads_to_places_that_are_there() -> None:
    cells = [re.findall(r"`([^`]+)`", cell) for cell, *_ in rows("Folder map")]
    assert {"substrate/domain/", "substrate/cli/", "tests/", "protos/"} <= {first for first, *_ in cells}
    for first, *others in cells:
        assert (ROOT / first).exists()
        assert [name for name in others if not (ROOT / first).with_name(name).exists()] == []


def test_every_file_and_target_that_the_readme_names_is_there() -> None:
    named = re.findall(r"`((?:substrate|tests|protos|migrations|bundles|docs)/[\w./-]+)`", README)
    assert [path for path in named if not (ROOT / path).exists()] == []
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    called = re.findall(r"`make ([a-z-]+)|^make ([a-z-]+)", README + (ROOT / ".ci/run").read_text(), re.MULTILINE)
    assert {first or second for first, second in called} <= set(targets)


def test_every_field_of_an_event_and_every_verb_of_the_servers_own_is_described() -> None:
    page = (ROOT / "docs/audit.md").read_text()
    table = page.partition("\n## The event\n")[2].partition("\n## ")[0]
    described = {name for line in table.splitlines() for name in re.findall(r"`(\w+)`", line.partition(" | ")[0])}
    fields = {field.name for field in dataclasses.fields(AuditEvent)} - {"inputs"}
    assert fields - described == set()
    for verb in (Verb.GAP, Verb.LOAD_STATIC, Verb.AUTHENTICATE, Verb.RETENTION):
        assert f"`{verb.value}`" in table


def test_the_readme_lists_every_setting_with_its_default() -> None:
    listed = {
        name.strip("`"): (default.strip("` "), text.rstrip(" |")) for name, default, text in rows("Configuration")
    }
    expected = {}
    for name, setting in Settings.model_fields.items():
        default = setting.default if isinstance(setting.default, str | int | float) else ""
        shown = str(default).lower() if isinstance(default, bool) else str(default)
        expected[f"SUBSTRATE_{name.upper()}"] = (shown, setting.description)
    assert listed == expected


@pytest.mark.parametrize("pattern", FOREIGN)
def test_the_project_speaks_of_itself_alone(pattern: str) -> None:
    foreign = re.compile(pattern, re.IGNORECASE)
    found = []
    for path in files():
        for number, line in enumerate(path.read_text(errors="replace").splitlines(), start=1):
            if foreign.search(line):
                found.append(f"{path.relative_to(ROOT)}:{number}")
    assert found == []


def test_every_rpc_of_the_protos_has_a_method_of_our_own() -> None:
    servicers = {servicer.__name__.removesuffix("r"): servicer for servicer in SERVICERS}
    missing = [
        method for method in METHODS if method.partition(".")[2] not in vars(servicers[method.partition(".")[0]])
    ]
    assert missing == []
    declared = re.findall(
        r"^  rpc (\w+)\(", "".join(p.read_text() for p in ROOT.glob("protos/**/*.proto")), re.MULTILINE
    )
    assert sorted(method.partition(".")[2] for method in METHODS) == sorted(declared)


def test_no_file_of_the_product_is_too_long_to_read_in_one_go() -> None:
    lengths = {
        str(path.relative_to(ROOT)): len(path.read_text().splitlines())
        for path in (ROOT / "substrate").rglob("*.py")
        if "api" not in path.relative_to(ROOT).parts
    }
    assert {path: length for path, length in lengths.items() if length > MAX_LINES} == {}


def test_the_version_is_the_same_everywhere() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert run(*COMMAND, "--version").stdout == f"substrate {version}\n"


def test_the_wheel_holds_all_that_an_installed_server_needs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built = run(sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path / "dist"), cwd=str(ROOT))
    assert built.returncode == 0, built.stderr
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    packed = set(zipfile.ZipFile(wheel).namelist())
    for top, inside in (("migrations", "_migrations"), ("bundles", "_bundles")):
        wanted = [path for path in (ROOT / top).rglob("*") if path.is_file() and path.suffix != ".pyc"]
        assert {f"substrate/{inside}/{path.relative_to(ROOT / top)}" for path in wanted} <= packed
    assert {"substrate/py.typed", "substrate/api/v1/skills_pb2.py"} <= packed
    assert not [name for name in packed if name.startswith("tests/") or name.endswith(".pyc")]

    target = tmp_path / "installed"
    pip = ("-m", "pip", "install", "--quiet", "--no-deps", "--no-index", "--target", str(target), str(wheel))
    installed = run(sys.executable, *pip)
    assert installed.returncode == 0, installed.stderr
    monkeypatch.setenv("PYTHONPATH", str(target))
    where = (
        "from substrate.sources.static import shipped_bundles; from substrate.store.migrate import migrations_dir;"
        "print(shipped_bundles(), migrations_dir())"
    )
    assert run(sys.executable, "-c", where).stdout.split() == [
        f"{target}/substrate/_bundles",
        f"{target}/substrate/_migrations",
    ]
    checked = run(*COMMAND, "check", cwd=os.fspath(tmp_path))
    assert (checked.stdout, checked.returncode) == ("13 skills, 3 agents; 0 problems, 0 remarks.\n", 0)
