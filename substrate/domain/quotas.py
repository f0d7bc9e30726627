"""Quotas: how much of everything one tenant may have, so that no tenant takes another's share.

What an operator has not set is the default. Counting is the store's and the services'; the limits, and the refusal that
names the one that was passed, are here.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields

from substrate.domain.errors import InvalidArgument, QuotaExceeded


@dataclass(frozen=True, slots=True)
class Quotas:
    """The limits of one tenant; the defaults are those of a tenant for which none were set.

    `skills` counts retired SkillDefs too, and `bytes` the bodies, headers and files of all versions.
    `writes_per_minute` is counted in each minute of the clock. `calls_in_flight` is divided among the processes of a
    server.
    """

    skills: int = 10_000
    versions_per_skill: int = 1_000
    bytes: int = 268_435_456
    agents: int = 1_000
    allowlist_entries: int = 200
    writes_per_minute: int = 1_200
    calls_in_flight: int = 128


QUOTA_NAMES = tuple(field.name for field in fields(Quotas))

LARGEST = Quotas(
    skills=1_000_000,
    versions_per_skill=1_000_000,
    bytes=1_099_511_627_776,
    agents=100_000,
    allowlist_entries=200,
    writes_per_minute=1_000_000,
    calls_in_flight=10_000,
)
"""The largest that an operator may set."""

_THINGS = {
    "skills": "SkillDefs, retired ones included",
    "versions_per_skill": "versions of one SkillDef",
    "bytes": "bytes of bodies, headers and files in all versions",
    "agents": "agents of its own",
    "allowlist_entries": "entries in one agent's allowlist",
    "writes_per_minute": "changes in a minute",
    "calls_in_flight": "calls in hand at once",
}


def quotas_from_plain(plain: Mapping[str, object]) -> Quotas:
    """Return the quotas with the names and values of `plain`, and the default of each that is absent.

    Raises InvalidArgument, naming the field ``quotas.<name>``, for an unknown name and for anything but a whole number
    from 0 (from 1 for `calls_in_flight`: to stop all calls is to suspend the tenant) to the largest.
    """
    given: dict[str, int] = {}
    for name, value in plain.items():
        if name not in QUOTA_NAMES:
            raise InvalidArgument(
                f"quotas.{name}", f"There is no quota of this name; the quotas are {', '.join(QUOTA_NAMES)}."
            )
        smallest = 1 if name == "calls_in_flight" else 0
        largest: int = getattr(LARGEST, name)
        if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
            raise InvalidArgument(f"quotas.{name}", f"Must be a whole number from {smallest} to {largest}.")
        given[name] = value
    return Quotas(**given)


def quotas_to_plain(quotas: Quotas) -> dict[str, int]:
    """Return every limit by its name."""
    return asdict(quotas)


def require(quota: str, limit: int, wanted: int, retry_after: int | None = None) -> None:
    """Raise QuotaExceeded when `wanted`, what the tenant would have after the call, is more than `limit`.

    `quota` is the name of a field of Quotas. `retry_after` is the number of whole seconds after which the same call may
    succeed; None where waiting does not help.
    """
    if wanted <= limit:
        return
    metadata = {"quota": quota, "limit": str(limit)}
    what_to_do = "Ask an operator to raise the quota."
    if retry_after is not None:
        metadata["retry_after_seconds"] = str(retry_after)
        what_to_do = f"Try again in {retry_after} s, or ask an operator to raise the quota."
    raise QuotaExceeded(f"The tenant may have {limit} {_THINGS[quota]}, and has reached that. {what_to_do}", **metadata)
