"""How commands reach a server: the shared options, the address and key they lead to, and the calls themselves."""

import functools
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import click
from pydantic import BaseModel, ValidationError

from substrate.cli import output
from substrate.domain.errors import SubstrateError
from substrate.rpc.client import CallFailed, Client, to_plain
from substrate.settings import Settings

DEFAULT_ADDRESS = "127.0.0.1:50051"

_RETRY_SECONDS = 1.0
_LOOPBACK = ("127.0.0.1", "localhost", "[::1]")
_OPTIONS = (
    click.option("--address", metavar="HOST:PORT", help="The server; else SUBSTRATE_ADDRESS, else the local server's."),
    click.option("--key", metavar="KEY", help="The bearer key; else SUBSTRATE_KEY, else the local server's."),
    click.option(
        "--data-dir", type=click.Path(path_type=Path), help="Where the local server keeps its data and keys.json."
    ),
    click.option(
        "--root-certificates", type=click.File("rb"), help="Use TLS and trust these certificates (a PEM file)."
    ),
    click.option(
        "--client-certificate",
        type=click.File("rb"),
        help="Show this certificate chain (a PEM file) to a server that asks for one.",
    ),
    click.option("--client-key", type=click.File("rb"), help="The private key of the client's certificate (PEM)."),
    click.option(
        "--timeout",
        type=click.FloatRange(0, 3600, min_open=True),
        default=10.0,
        show_default=True,
        help="Seconds for each call.",
    ),
    click.option("--json", "as_json", is_flag=True, help="Print the whole answer as one JSON document."),
)


class _LocalServer(BaseModel):
    """What a server with its own database leaves in its data folder for the commands beside it."""

    address: str
    keys: dict[str, str]


@dataclass(frozen=True, slots=True)
class Remote:
    """A server to call, as the shared options describe it. Failures are click exceptions, ready to be shown."""

    settings: Settings
    root_certificates: bytes | None
    identity: tuple[bytes, bytes] | None
    timeout: float
    as_json: bool

    def call(self, method: str, **fields: object) -> dict[str, Any]:
        """Return the JSON form of the answer to one call."""
        with self._client(method, fields) as client:
            return to_plain(client.call(method, **fields))

    def raw(self, method: str, **fields: object) -> Any:
        """Return the answer to one call as its message, for what JSON cannot hold."""
        with self._client(method, fields) as client:
            return client.call(method, **fields)

    def collect(self, method: str, field: str, limit: int = 0, **fields: object) -> dict[str, Any]:
        """Return the last page's JSON form with the entries of all pages, or of the first `limit`, in its `field`."""
        answer: dict[str, Any] = {}
        entries: list[Any] = []
        with self._client(method, fields) as client:
            for page in client.pages(method, **fields):
                answer = to_plain(page)
                entries += answer[field]
                if limit and len(entries) >= limit:
                    break
        # A token for what follows would mislead: the pages need not end where `limit` cut.
        del answer["next_page_token"]
        return answer | {field: entries[:limit] if limit else entries}

    def stream(self, method: str, **fields: object) -> Iterator[dict[str, Any]]:
        """Yield the JSON form of each answer of a method that sends several, as they come, however long it takes."""
        with self._client(method, fields) as client:
            for answer in client.stream(method, timeout=None, **fields):
                yield to_plain(answer)

    def each(self, method: str, field: str, **fields: object) -> Iterator[dict[str, Any]]:
        """Yield the JSON form of each entry in the `field` of a list, a page at a time."""
        with self._client(method, fields) as client:
            for page in client.pages(method, **fields):
                yield from to_plain(page)[field]

    def follow(self, method: str, position: str = "", **fields: object) -> Iterator[dict[str, Any]]:
        """As `stream`, for ever: after the loss of the connection, or of the server, it goes on from its last position.

        Only a stream that has begun is taken up again; `position` is where an earlier one ended.
        """
        begun = False
        while True:
            try:
                for answer in self.stream(method, **fields, position=position):
                    begun = True
                    position = answer["position"]
                    yield answer
            except output.Refusal as refusal:
                if not begun or ("code", "UNAVAILABLE") not in refusal.facts:
                    raise
                output.note(f"{refusal.message} Trying again.")
            time.sleep(_RETRY_SECONDS)

    def show(self, answer: dict[str, Any], text: str | bytes) -> None:
        """Print the answer as ``--json`` asks: whole, or as `text`."""
        output.show(answer, text, as_json=self.as_json)

    @contextmanager
    def _client(self, method: str, fields: dict[str, object]) -> Iterator[Client]:
        address, key = _destination(self.settings, _role(method, fields))
        try:
            with (
                refusals(),
                Client(
                    address,
                    key,
                    timeout=self.timeout,
                    root_certificates=self.root_certificates,
                    identity=self.identity,
                ) as client,
            ):
                yield client
        except ValueError as error:
            raise click.UsageError(f"A value cannot be sent: {error}") from None


def connected(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the shared options, and a Remote made of them as its first argument.

    Stands next to the function, so that its own options come first in the help.
    """

    @functools.wraps(command)
    def run(
        *,
        address: str | None,
        key: str | None,
        data_dir: Path | None,
        root_certificates: IO[bytes] | None,
        client_certificate: IO[bytes] | None,
        client_key: IO[bytes] | None,
        timeout: float,
        as_json: bool,
        **arguments: object,
    ) -> None:
        settings = load_settings(address=address, key=key, data_dir=data_dir)
        certificates = root_certificates.read() if root_certificates else None
        identity = _identity(client_certificate, client_key)
        if identity and not certificates:
            raise click.UsageError("--client-certificate needs TLS: pass --root-certificates too.")
        command(Remote(settings, certificates, identity, timeout, as_json), **arguments)

    for option in reversed(_OPTIONS):
        run = option(run)
    return run


def _identity(certificate: IO[bytes] | None, key: IO[bytes] | None) -> tuple[bytes, bytes] | None:
    if certificate is None and key is None:
        return None
    if certificate is None or key is None:
        raise click.UsageError("Pass both --client-certificate and --client-key, or neither.")
    return certificate.read(), key.read()


def load_settings(**overrides: Any) -> Settings:
    """Return the settings of the environment with `overrides` that are not None; a usage error lists all problems."""
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        problems = [f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}" for problem in error.errors()]
        raise click.UsageError("The settings cannot be used: " + "; ".join(problems)) from None


@contextmanager
def refusals(*others: type[Exception]) -> Iterator[None]:
    """Turn errors that are meant for people, `others` among them, into refusals."""
    try:
        yield
    except CallFailed as error:
        facts = [("code", error.code), ("reason", error.reason), *sorted(error.metadata.items())]
        raise output.Refusal(error.message, facts, error.violations) from None
    except SubstrateError as error:
        violations = [(violation.field, violation.description) for violation in error.violations]
        raise output.Refusal(error.message, error.metadata.items(), violations) from None
    except others as error:
        if isinstance(error, OSError) and error.filename is not None:
            raise output.Refusal(f"{error.filename}: {error.strerror}.") from None
        raise output.Refusal(str(error)) from None


def _role(method: str, fields: dict[str, object]) -> str:
    """Return the role whose key a call needs, where there is a choice of keys."""
    service = method.partition(".")[0]
    if service == "SkillService":
        return "runtime"
    # Authors read the log of their own tenant; to name one is for operators, and an empty one stands for all of them.
    return "operator" if service == "TenantService" or fields.get("tenant") is not None else "author"


def _destination(settings: Settings, role: str) -> tuple[str, str]:
    """Return the address to call and the key to use: what is set, completed by what the local server left."""
    address, key = settings.address, settings.key.get_secret_value() if settings.key else None
    if address and key:
        return address, key
    path = settings.data_dir / "keys.json"
    local = _local_server(path)
    if key:
        return address or (local.address if local else DEFAULT_ADDRESS), key
    if local is None:
        raise click.UsageError(
            f"There is no key to call with. Pass --key or set SUBSTRATE_KEY, or run `substrate serve` without a "
            f"database URL first: it leaves its keys in {path}, where this command looks for them."
        )
    if address and address != local.address and address.rpartition(":")[0] not in _LOOPBACK:
        # A key tells whoever receives it how to act on the local server.
        raise click.UsageError(f"The keys in {path} are for the local server alone. Pass --key for {address}.")
    if role not in local.keys:
        raise click.UsageError(f"{path} holds no key for the role {role}. Pass --key or set SUBSTRATE_KEY.")
    return address or local.address, local.keys[role]


def _local_server(path: Path) -> _LocalServer | None:
    try:
        return _LocalServer.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except OSError as error:
        raise click.UsageError(f"{path} cannot be read ({error.strerror}). Pass --key and --address.") from None
    except ValidationError:
        raise click.UsageError(f"{path} is not what `substrate serve` writes. Pass --key and --address.") from None
