"""What there is to tell of one name in one tenant, read from two chains backwards, and laid side by side by time."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from substrate.domain.audit import KeptInput
from substrate.domain.candidates import LayerKind, Resolution
from substrate.domain.catalog import StaticCatalog
from substrate.domain.history import (
    Own,
    change_text,
    damaged_text,
    differ,
    imports,
    own_after,
    own_of,
    stands_alone,
    static_around,
    unknown_text,
)
from substrate.domain.inputs import InvalidInputTextError, static_of
from substrate.domain.names import PLATFORM_TENANT, SkillName, TenantId
from substrate.domain.recorded import Event, readable, whole
from substrate.services.call import Call
from substrate.sources.tenant import read_layers
from substrate.store import audit_reports
from substrate.store.audit_reports import Recorded
from substrate.store.session import Database, Transaction

MAX_EVENTS_READ = 2000
"""Events that are looked at for one page, however few changes they tell of."""

MAX_STATES_READ = 20
"""Static states that are read for one page; each holds all skills of all bundles."""

_CHUNK = 200
_MAX_KNOWN_STATES = 1024
_OUT_OF_ORDER = timedelta(minutes=10)
"""How much earlier a call may have arrived than one that committed before it."""


@dataclass(frozen=True, slots=True)
class SkillChange:
    """One change; a resolution is None when it is not known what the name stood for."""

    time: datetime
    verb: str
    actor: str
    event_id: str
    before: Resolution | None
    after: Resolution | None
    text: str


@dataclass(frozen=True, slots=True)
class _Event:
    """An event, and its place in its chain; of one that was damaged, the fields are those that can be read."""

    sequence: int
    time: datetime
    fields: Event
    damaged: bool


class Statics:
    """Static states as they were kept, each cut down to one name; those used last stay in memory."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._known: OrderedDict[tuple[str, SkillName], StaticCatalog] = OrderedDict()
        self._lock = threading.Lock()

    def known(self, digest: str, name: SkillName) -> StaticCatalog | None:
        """Return the state's part about `name` if it is in memory."""
        with self._lock:
            if (digest, name) in self._known:
                self._known.move_to_end((digest, name))
            return self._known.get((digest, name))

    def read(self, call: Call, digest: str, name: SkillName) -> StaticCatalog | None:
        """Return the state's part about `name`, or None when the state is not kept as it was."""
        with self._database.tenant(PLATFORM_TENANT, call.deadline) as connection:
            text = audit_reports.kept(connection, PLATFORM_TENANT, digest)
        try:
            found = None if text is None else static_of(KeptInput(digest, text), name)
        except InvalidInputTextError:
            found = None
        if found is not None:
            with self._lock:
                self._known[digest, name] = found
                if len(self._known) > _MAX_KNOWN_STATES:
                    self._known.popitem(last=False)
        return found


class _Chain:
    """Events of one chain, the newest first, read in chunks as they are asked for."""

    def __init__(self, read: Callable[[int], list[_Event]], before: int) -> None:
        self._read = read
        self._before = before
        self._is_whole = False
        self._events: list[_Event] = []

    def at(self, index: int) -> _Event | None:
        """Return the event at `index`, or None when there are no more that far back."""
        while index >= len(self._events) and not self._is_whole:
            events = self._read(self._before)
            self._is_whole = len(events) < _CHUNK
            self._before = events[-1].sequence if events else 0
            self._events += events
        return self._events[index] if index < len(self._events) else None


class Past:
    """What there is to tell of one name in one tenant, from two `positions` in the chains backwards."""

    def __init__(
        self,
        call: Call,
        database: Database,
        statics: Statics,
        tenant: TenantId,
        name: SkillName,
        positions: tuple[int, int],
    ) -> None:
        self._call = call
        self._database = database
        self._statics = statics
        self._tenant = tenant
        self._name = name
        self._positions = positions
        self._changes = _Chain(self._read_changes, positions[0])
        self._loads = _Chain(self._read_loads, positions[1])
        self._made: Sequence[_Event] | None = None
        self._base: list[Own | None] = []
        self._states_read = 0

    def page(
        self, created: datetime, since: datetime | None, limit: int
    ) -> tuple[list[SkillChange], tuple[int, int] | None]:
        """Return up to `limit` changes, and the positions from which to go on, or None at the end.

        What servers loaded before the tenant was `created` changed nothing for it.
        """
        told: list[SkillChange] = []
        changed, loaded = 0, 0
        position = self._positions
        while True:
            self._call.require_time()
            change, load = self._changes.at(changed), self._loads.at(loaded)
            if load is not None and load.time < created:
                load = None
            # Of two at the same time the author's change is the later one.
            is_load = load is not None and (change is None or load.time > change.time)
            newest = load if is_load else change
            if newest is None or (since is not None and newest.time + _OUT_OF_ORDER < since):
                return told, None
            found = None
            if since is None or newest.time >= since:
                found = self._of_load(newest, changed, loaded) if is_load else self._of_change(newest, changed)
            if found and len(told) == limit:
                return told, position
            told += [found] if found else []
            if is_load:
                loaded, position = loaded + 1, (position[0], newest.sequence)
            else:
                changed, position = changed + 1, (newest.sequence, position[1])
            if changed + loaded == MAX_EVENTS_READ or self._states_read >= MAX_STATES_READ:
                return told, position

    def _of_change(self, made: _Event, index: int) -> SkillChange | None:
        if made.damaged:
            return _change(made, None, None, damaged_text(made.sequence))
        before, after = self._own(index + 1), self._own(index)
        static = static_around(made.fields, self._name) or self._static(made.fields["static_digest"])
        if after is None or static is None:
            return _change(made, None, None, unknown_text(made.fields))
        now = after.over(static, self._name)
        if before is None:
            return _change(made, None, now, change_text(made.fields, None, now, _CUT))
        return _changed(made, before.over(static, self._name), now)

    def _of_load(self, load: _Event, changed: int, index: int) -> SkillChange | None:
        if load.damaged:
            return _change(load, None, None, damaged_text(load.sequence))
        own, older = self._own(changed), self._loads.at(index + 1)
        digest = load.fields["static_digest"]
        said = (load.fields.get("details") or {}).get("previous", "")
        previous = older.fields["static_digest"] if older and not older.damaged else said
        if previous == digest or own is None:
            return None
        static = self._static(digest)
        if static is None:
            return _change(load, None, None, unknown_text(load.fields))
        now = own.over(static, self._name)
        lower = self._static(previous) if previous else None
        if lower is not None:
            return _changed(load, own.over(lower, self._name), now)
        if now.winner is None or now.winner.kind is LayerKind.TENANT:
            return None
        note = f"what was served before, {previous}, is not kept" if previous else _FIRST
        return _change(load, None, now, change_text(load.fields, None, now, note))

    def _own(self, index: int) -> Own | None:
        """Return what the tenant said of the name after the change at `index`, or None when that is unknown."""
        later: list[_Event] = []
        while (event := self._changes.at(index)) is not None:
            if event.damaged:
                return None
            later.append(event)
            if stands_alone(event.fields):
                break
            index += 1
        own = Own() if event is not None else self._own_at_first()
        for event in reversed(later):
            own = None if own is None else own_after(event.fields, self._name, own)
        return own

    def _own_at_first(self) -> Own | None:
        """Return what the tenant said before the first change in the log, or None when that is unknown."""
        if not self._base:
            with self._database.tenant(self._tenant, self._call.deadline, snapshot=True) as connection:
                is_cut = audit_reports.is_cut(connection, self._tenant)
                layers = read_layers(connection, self._tenant, self._name)
                newest = self._read_rows(connection, None, 1)
            # Without a change in what is left of the log it was then as it is now.
            is_unchanged = not newest and not self._made
            now = own_of([candidate for layer in layers for candidate in layer.candidates.values()])
            self._base.append(Own() if not is_cut else now if is_unchanged else None)
        return self._base[0]

    def _static(self, digest: str) -> StaticCatalog | None:
        found = self._statics.known(digest, self._name)
        if found is None:
            self._states_read += 1
            found = self._statics.read(self._call, digest, self._name)
        return found

    def _read_changes(self, before: int) -> list[_Event]:
        with self._database.tenant(self._tenant, self._call.deadline) as connection:
            events = self._read_rows(connection, before, _CHUNK)
            if self._made is None:
                imported = _events(audit_reports.imports(connection, self._tenant, self._name), self._tenant)
                self._made = [event for event in imported if event.damaged or imports(event.fields, self._name)]
        # The import that made the SkillDef is among the changes where it belongs.
        last = events[-1].sequence if len(events) == _CHUNK else 0
        events += [event for event in self._made if last < event.sequence < before]
        return sorted(events, key=lambda event: -event.sequence)

    def _read_rows(self, connection: Transaction, before: int | None, limit: int) -> list[_Event]:
        return _events(audit_reports.changes(connection, self._tenant, self._name, before, limit), self._tenant)

    def _read_loads(self, before: int) -> list[_Event]:
        with self._database.tenant(PLATFORM_TENANT, self._call.deadline) as connection:
            return _events(audit_reports.loads(connection, PLATFORM_TENANT, before, _CHUNK), PLATFORM_TENANT)


_CUT = "what it stood for before is not known, as the first months of the log were dropped"
_FIRST = "the log does not tell what was served before"


def _changed(event: _Event, before: Resolution, after: Resolution) -> SkillChange | None:
    """Return the change that `event` made, if it made one."""
    if not differ(before, after):
        return None
    return _change(event, before, after, change_text(event.fields, before, after))


def _change(event: _Event, before: Resolution | None, after: Resolution | None, text: str) -> SkillChange:
    fields = event.fields
    return SkillChange(event.time, fields["verb"], fields.get("actor", ""), fields.get("id", ""), before, after, text)


def _events(rows: Sequence[Recorded], tenant: TenantId) -> list[_Event]:
    return [_event(row, whole(row.event, tenant)) for row in rows]


def _event(row: Recorded, fields: Event | None) -> _Event:
    if fields is None:
        return _Event(row.sequence, row.time, {**readable(row.event), "verb": row.verb}, damaged=True)
    return _Event(row.sequence, datetime.fromisoformat(fields["time"]), fields, damaged=False)
