"""The benchmark: the product against two bare gRPC servers that return the same bytes, in one run.

The product runs as it ships: its own process, embedded PostgreSQL with durable commits, strict audit, strong reads,
info log. Every server is driven by the same client in turn, a round at a time; what counts is the ratio within a round,
since a machine's speed drifts. Nothing here asserts a time. What is asserted: that every call was answered in full, and
that the audit holds one event for each.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import grpc

from substrate.api.v1 import skills_pb2
from substrate.rpc.client import Client
from tests.perf import load, servers
from tests.perf.load import Target
from tests.perf.servers import Server

AGENT = "bench-agent"
ENTRIES = 1000
BODY_BYTES = 4096
PRODUCT, BARE = "substrate", ("sync", "aio")

_FIELDS = ("calls_per_second", "p50_ms", "p99_ms", "cpu_us", "database_cpu_us")
_SERVICE = "/substrate.api.v1.SkillService"
_OWN, _BUNDLED = "perf/own-skill", "perf/skill-0000"
_LINE = "Read the section named above, note each claim with its source, and keep the numbering as it is.\n"
_MANIFEST = f"""\
name: perf
version: 1.0.0
description: Skills for the benchmark.
agents:
  {AGENT}:
    description: Works through a catalog of skills.
    skills: ["perf/*", "doc/*", "-perf/secret-*"]
"""


@dataclass(frozen=True, slots=True)
class Case:
    """One kind of call: its verb in the audit, its method and request, and how many make one measurement."""

    name: str
    verb: str
    method: str
    request: bytes
    calls: int


@dataclass(frozen=True, slots=True)
class Measured:
    """One load of one server: times in milliseconds, processor time for each call in microseconds."""

    case: str
    server: str
    concurrency: int
    calls_per_second: float
    p50_ms: float
    p99_ms: float
    cpu_us: float
    database_cpu_us: float


def cases(scale: float) -> list[Case]:
    """Return what is measured; `scale` multiplies the numbers of calls."""
    invokes, lists = int(8000 * scale), int(1500 * scale)
    own, bundled = (
        skills_pb2.InvokeSkillRequest(agent=AGENT, run_id="run-7f3a9c", turn=3, name=name).SerializeToString()
        for name in (_OWN, _BUNDLED)
    )
    listing = skills_pb2.ListSkillsRequest(agent=AGENT, run_id="run-7f3a9c", turn=1).SerializeToString()
    return [
        Case("invoke, tenant's", "invoke", f"{_SERVICE}/InvokeSkill", own, invokes),
        Case("invoke, bundled", "invoke", f"{_SERVICE}/InvokeSkill", bundled, invokes),
        Case(f"list of {ENTRIES:,}", "list", f"{_SERVICE}/ListSkills", listing, lists),
    ]


def skill_source(name: str) -> str:
    """Return a SKILL.md whose body has BODY_BYTES bytes."""
    body = (_LINE * (BODY_BYTES // len(_LINE) + 1))[: BODY_BYTES - 1] + "\n"
    description = f"Reviews what {name} stands for; use it when a claim lacks its source or a number looks odd."
    return f"---\nname: {name}\ndescription: {description}\n---\n{body}"


def write_config(folder: Path) -> Path:
    """Write a bundle of ENTRIES - 1 skills below `folder`, and return the config file that names it."""
    for number in range(ENTRIES - 1):
        skill = folder / "bundle" / "skills" / "perf" / f"skill-{number:04}"
        skill.mkdir(parents=True)
        (skill / "SKILL.md").write_text(skill_source(skill.name))
    (folder / "bundle" / "bundle.yaml").write_text(_MANIFEST)
    config = folder / "substrate.yaml"
    config.write_text("bundles: [bundle]\n")
    return config


class Bench:
    """The product and the bare servers, side by side."""

    def __init__(self, client: str, folder: Path, product: Server, keys: Mapping[str, str]) -> None:
        self._client = client
        self._folder = folder
        self._product = product
        self._keys = keys
        self._servers = {PRODUCT: product}
        self._answers: dict[Case, bytes] = {}
        self._answered: dict[str, int] = {}

    def prepare(self, asked: Sequence[Case], stack: ExitStack) -> None:
        """Make the tenant's own skill, keep the product's answers, and start bare servers that return them."""
        with Client(self._product.address, self._keys["author"]) as author:
            author.call("SkillDefService.CreateSkillDef", name=_OWN, source=skill_source(_OWN.rpartition("/")[2]))
        bearer = (("authorization", f"Bearer {self._keys['runtime']}"),)
        with grpc.insecure_channel(self._product.address, options=[("grpc.enable_http_proxy", 0)]) as channel:
            for case in asked:
                send: Any = channel.unary_unary(case.method)
                self._answers[case] = send(case.request, timeout=30, metadata=bearer)
                self._count(case, 1)
        answers: dict[str, dict[bytes, bytes]] = {}
        for case, answer in self._answers.items():
            answers.setdefault(case.method, {})[case.request] = answer
        for kind in BARE:
            self._servers[kind] = stack.enter_context(servers.bare(kind, self._folder, answers))

    def measure(self, case: Case, concurrency: int, turn: int) -> list[Measured]:
        """Load every server in turn, beginning with another one each `turn`, each after a short warm-up."""
        names = list(self._servers)
        first = turn % len(names)
        return [self._measure(name, case, concurrency) for name in names[first:] + names[:first]]

    def check_audit(self) -> Mapping[str, int]:
        """Return how many events of answered calls the audit has; raise LoadFailedError unless it is one a call."""
        found = {}
        with Client(self._product.address, self._keys["author"], timeout=60) as author:
            for verb in self._answered:
                query = author.pages("AuditService.QueryAuditEvents", verb=verb, outcome=1, page_size=1000)
                found[verb] = sum(len(page.events) for page in query)
        if found != self._answered:
            raise load.LoadFailedError(f"The audit has the events {found} for the answers {self._answered}.")
        return found

    def _measure(self, name: str, case: Case, concurrency: int) -> Measured:
        server = self._servers[name]
        self._load(name, case, case.calls // 8, concurrency)
        cpu, database = server.cpu_seconds(), server.database_cpu_seconds()
        outcome = self._load(name, case, case.calls, concurrency)
        cpu, database = server.cpu_seconds() - cpu, server.database_cpu_seconds() - database
        cuts = statistics.quantiles(outcome.micros, n=100, method="inclusive")
        micros_a_call = 1e6 / outcome.calls
        return Measured(
            case=case.name,
            server=name,
            concurrency=concurrency,
            calls_per_second=outcome.calls / outcome.seconds,
            p50_ms=cuts[49] / 1000,
            p99_ms=cuts[98] / 1000,
            cpu_us=cpu * micros_a_call,
            database_cpu_us=database * micros_a_call,
        )

    def _load(self, name: str, case: Case, calls: int, concurrency: int) -> load.Outcome:
        address, answer = self._servers[name].address, self._answers[case]
        target = Target(address, case.method, case.request, self._keys["runtime"], len(answer))
        with servers.on_cores(servers.OTHER_CORES):
            outcome = load.run(self._client, target, max(calls, concurrency), concurrency, self._folder)
        if name == PRODUCT:
            self._count(case, outcome.calls)
        return outcome

    def _count(self, case: Case, calls: int) -> None:
        self._answered[case.verb] = self._answered.get(case.verb, 0) + calls


def table(measured: Sequence[Measured]) -> str:
    """Return the medians of every server, and the product's ratios: their median, least and greatest of the rounds."""
    lines = [f"{'':18}{'at once':>8}{'server':>11}{'calls/s':>9}{'p50 ms':>8}{'p99 ms':>8}{'CPU µs':>8}{'DB µs':>7}"]
    kinds = list(dict.fromkeys((m.case, m.concurrency) for m in measured))
    for case, concurrency in kinds:
        for server in (PRODUCT, *BARE):
            of = [m for m in measured if (m.case, m.concurrency, m.server) == (case, concurrency, server)]
            middle = {field: statistics.median(getattr(m, field) for m in of) for field in _FIELDS}
            lines.append(
                f"{case:18}{concurrency:>8}{server:>11}{middle['calls_per_second']:>9,.0f}{middle['p50_ms']:>8.2f}"
                f"{middle['p99_ms']:>8.2f}{middle['cpu_us']:>8.0f}{middle['database_cpu_us']:>7.0f}"
            )
    lines += ["", f"{'substrate ÷ bare':18}{'at once':>8}{'bare':>11}{'calls/s (least to most)':>26}{'CPU':>8}"]
    for case, concurrency in kinds:
        for bare in BARE:
            speed = ratios(measured, case, concurrency, bare, "calls_per_second")
            cpu = statistics.median(ratios(measured, case, concurrency, bare, "cpu_us"))
            spread = f"{statistics.median(speed):.2f} ({min(speed):.2f} to {max(speed):.2f})"
            lines.append(f"{case:18}{concurrency:>8}{bare:>11}{spread:>26}{cpu:>8.2f}")
    return "\n".join(lines)


def ratios(measured: Sequence[Measured], case: str, concurrency: int, bare: str, field: str) -> list[float]:
    """Return, round by round, the product's figure divided by that of the `bare` server."""
    ours, theirs = (
        [getattr(m, field) for m in measured if (m.case, m.concurrency, m.server) == (case, concurrency, server)]
        for server in (PRODUCT, bare)
    )
    return [our / their for our, their in zip(ours, theirs, strict=True)]


def main() -> None:
    """Run the benchmark as the command line asks, and print its table."""
    parser = argparse.ArgumentParser(prog="make bench ARGS=…", description=__doc__)
    parser.add_argument("--rounds", type=int, default=3, help="how often each server is loaded with each case")
    parser.add_argument("--concurrency", type=int, nargs="+", default=[32], help="calls at once, such as 1 8 32 128")
    parser.add_argument("--scale", type=float, default=1.0, help="multiplies the number of calls")
    parser.add_argument("--client", choices=load.clients(), default=load.clients()[0], help="what makes the calls")
    parser.add_argument("--json", type=Path, help="also write all measurements to this file")
    asked = parser.parse_args()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="substrate-bench-", dir="/tmp")))
        folder.chmod(0o755)  # PostgreSQL, when started as root, runs as another account.
        product = stack.enter_context(servers.product(folder, write_config(folder)))
        keys = json.loads((folder / "data" / "keys.json").read_text())["keys"]
        bench = Bench(asked.client, folder, product, keys)
        kinds = cases(asked.scale)
        bench.prepare(kinds, stack)
        load_of = ", ".join(f"{case.calls:,} of {case.name}" for case in kinds)
        click.echo(f"Client: {asked.client}. {asked.rounds} rounds; calls a round: {load_of}.")
        click.echo(
            f"Cores: the servers on {servers.SERVER_CORES}, the client and PostgreSQL on {servers.OTHER_CORES}.\n"
        )
        measured = [
            each
            for concurrency in asked.concurrency
            for case in kinds
            for turn in range(asked.rounds)
            for each in bench.measure(case, concurrency, turn)
        ]
        events = bench.check_audit()
    click.echo(table(measured))
    written = ", ".join(f"{count:,} {verb}" for verb, count in events.items())
    click.echo(f"\nEvery call was answered in full; the audit has an event for each: {written}.")
    if asked.json:
        report = {"client": asked.client, "cores": os.cpu_count(), "measured": [asdict(m) for m in measured]}
        asked.json.write_text(json.dumps(report, indent=2) + "\n")


if __name__ == "__main__":
    main()
