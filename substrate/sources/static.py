"""All that does not change between reloads: bundles, inline definitions, agents and name modes, with one digest."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from substrate.domain.agents import Agent
from substrate.domain.audit import KeptInput
from substrate.domain.candidates import Candidate, Layer, LayerKind
from substrate.domain.catalog import NameModes, StaticCatalog
from substrate.domain.errors import InvalidConfig, Violation
from substrate.domain.inputs import static_input
from substrate.domain.names import AgentName
from substrate.sources import bundles
from substrate.sources.bundles import Bundle, SourceProblem, load_bundle
from substrate.sources.configfile import invalid_config
from substrate.sources.inline import BundleRef, Config, read_config

SHIPPED = ("document-agent", "writing", "marketing")
"""The bundles that a server without a config file serves, from the highest to the lowest."""


@dataclass(frozen=True)
class StaticState:
    """What a server holds until the next reload; tenants share it.

    `agents` are the inline ones, then those of the bundles in order, the first of a name. `kept` is what the audit
    keeps of it: everything here that can change a decision or an answer.
    """

    catalog: StaticCatalog
    agents: Mapping[AgentName, Agent]
    bundles: tuple[Bundle, ...]
    problems: tuple[SourceProblem, ...]
    kept: KeptInput

    @property
    def digest(self) -> str:
        """The hex SHA-256 of what is kept: equal digests answer equally, wherever the files lie."""
        return self.kept.sha256


def shipped_bundles() -> Path:
    """Return where the product's own bundles lie: inside an installed package, at the top of a checkout."""
    package = Path(__file__).resolve().parent.parent
    installed = package / "_bundles"
    return installed if installed.is_dir() else package.parent / "bundles"


def load_static(config: Path | None, folders: Sequence[Path] = ()) -> StaticState:
    """Read the config file and the bundles it names; without one, `folders` as bundles, or the product's own bundles.

    Raises InvalidConfig with all that is wrong in the config and in the bundles' manifests. What is wrong with single
    skills of a bundle is in `problems`.
    """
    violations: list[Violation] = []
    settings = read_config(config, shipped_bundles(), violations) if config else _without_config(folders)
    loaded = _load_bundles(settings, violations)
    if violations:
        raise invalid_config(violations)
    catalog = StaticCatalog((settings.layer, *(bundle.layer for bundle in loaded)), NameModes(settings.modes))
    agents: dict[AgentName, Agent] = {}
    for agent in (*settings.agents, *(agent for bundle in loaded for agent in bundle.agents)):
        agents.setdefault(agent.name, agent)
    return StaticState(
        catalog,
        agents,
        loaded,
        tuple(problem for bundle in loaded for problem in bundle.problems),
        static_input(catalog, agents.values()),
    )


def read_body(candidate: Candidate) -> str:
    """Return the body of an inline or bundled skill; raise SkillChanged when a bundle's file is not what was loaded."""
    return bundles.read_body(candidate) if candidate.body is None else candidate.body


def _without_config(folders: Sequence[Path]) -> Config:
    refs = tuple(BundleRef(folder, 0, str(folder)) for folder in folders)
    refs = refs or tuple(BundleRef(shipped_bundles() / name, 0, f"shipped:{name}") for name in SHIPPED)
    return Config(refs, Layer(LayerKind.INLINE, "inline", {}), (), ())


def _load_bundles(settings: Config, violations: list[Violation]) -> tuple[Bundle, ...]:
    loaded: dict[str, Bundle] = {}
    for ref in settings.bundles:
        try:
            bundle = load_bundle(ref.path, ref.positional_base)
        except InvalidConfig as error:
            violations.extend(error.violations)
            continue
        first = loaded.setdefault(bundle.name, bundle)
        if first is not bundle:
            message = f"The bundles in {first.root} and {bundle.root} are both called {bundle.name}."
            violations.append(Violation(ref.place, message))
    return tuple(loaded.values())
