"""How old a state a call accepts, and which state it has seen before.

Reads are strong: they reflect everything committed before the call arrived, a key that was revoked included. A caller
may accept less for when the database cannot be asked, and is then answered from memory; a catalog token it sends along
is the oldest state that will do.
"""

from dataclasses import dataclass

from substrate.domain.errors import InvalidInput, RevisionUnknown
from substrate.domain.tokens import read_catalog_token
from substrate.services.call import Call
from substrate.services.snapshots import Snapshot
from substrate.services.trace import Trace


@dataclass(frozen=True, slots=True)
class Reads:
    """What a reading call accepts while the database is away: a state that was current so many seconds before it came.

    `token` is a catalog token that the state must be no older than; one that cannot be read tolerates nothing.
    """

    max_staleness: float = 0.0
    token: str = ""

    def tolerate(self, snapshot: Snapshot, call: Call) -> bool:
        """Whether `snapshot` will do although it cannot be held against the database."""
        if self.max_staleness <= 0 or snapshot.confirmed < call.started - self.max_staleness:
            return False
        try:
            token = read_catalog_token(self.token) if self.token else snapshot.token
        except InvalidInput:
            return False
        # One of another database may be of a newer incarnation of this one, which the snapshot knows nothing of.
        return token.incarnation == snapshot.token.incarnation and token.revision <= snapshot.token.revision


def follow_token(trace: Trace, token: str) -> None:
    """Hold the caller's catalog token against the snapshot and note whether the catalog has changed since.

    Raises InvalidPageToken for a malformed token, RevisionUnknown for one of another database, another tenant, or a
    revision that this database has not reached.
    """
    if not token:
        return
    theirs = read_catalog_token(token)
    ours = trace.snapshot.token
    if (theirs.incarnation, theirs.tenant) != (ours.incarnation, ours.tenant) or theirs.revision > ours.revision:
        raise RevisionUnknown("The catalog token is of another database, or of a state this one has not reached.")
    trace.call.catalog_changed = ours.differs_from(theirs)
