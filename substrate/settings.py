"""Settings: the only reader of the environment.

Every field is read from ``SUBSTRATE_<NAME>``; what the command line gives wins.
"""

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

_HOST_AND_PORT = r"^.+:([0-9]{1,4}|[1-5][0-9]{4}|6[0-4][0-9]{3}|65[0-4][0-9]{2}|655[0-2][0-9]|6553[0-5])$"

CLIENT_SETTINGS = ("address", "key")
"""The settings that commands read which call a server; all others are the server's."""


def default_data_dir() -> Path:
    """Return where a server with its own database keeps its data when it is not told."""
    if os.geteuid() == 0:
        return Path("/var/lib/skill-substrate")
    state = os.environ.get("XDG_STATE_HOME", "")
    return (Path(state) if state else Path.home() / ".local" / "state") / "skill-substrate"


class Settings(BaseSettings):
    """What a server or a client can be told."""

    def environment(self, **changes: object) -> dict[str, str]:
        """Return the server's settings, with `changes`, as the environment that gives them to another process."""
        values = {name: getattr(self, name) for name in type(self).model_fields if name not in CLIENT_SETTINGS}
        values.update(changes)
        prefix = self.model_config["env_prefix"]
        return {f"{prefix}{name.upper()}": str(value) for name, value in values.items() if value is not None}

    model_config = SettingsConfigDict(env_prefix="SUBSTRATE_", extra="forbid", frozen=True)

    listen: Annotated[
        str, Field(pattern=_HOST_AND_PORT, description="HOST:PORT to serve on; port 0 takes a free one.")
    ] = "127.0.0.1:50051"
    insecure: Annotated[bool, Field(description="Serve without TLS on an address that others can reach.")] = False
    tls_certificate: Annotated[Path | None, Field(description="PEM file of the server's certificate chain.")] = None
    tls_key: Annotated[Path | None, Field(description="PEM file of the certificate's private key.")] = None
    tls_client_ca: Annotated[
        Path | None,
        Field(description="PEM file of the authorities whose certificates clients must show; needs the two above."),
    ] = None
    database_url: Annotated[
        str | None,
        Field(
            pattern=r"^postgres(ql)?://",
            description="URL of the PostgreSQL to use, as the login role; without it the server starts its own.",
        ),
    ] = None
    data_dir: Annotated[
        Path,
        Field(
            description="Folder of the embedded database and the first keys, keys.json; else /var/lib/skill-substrate "
            "for root, and skill-substrate in the account's state folder for others."
        ),
    ] = Field(default_factory=default_data_dir)
    postgres_user: Annotated[
        str | None, Field(description="Unprivileged account that runs embedded PostgreSQL when started as root.")
    ] = None
    config: Annotated[Path | None, Field(description="The operator's substrate.yaml.")] = None
    workers: Annotated[
        int, Field(ge=1, le=64, description="Processes that share the port; more than one per core is no use.")
    ] = 1
    threads: Annotated[int, Field(ge=1, le=256, description="Threads that handle calls.")] = 32
    max_calls: Annotated[
        int, Field(ge=1, description="Calls held, running and waiting, before more are refused as OVERLOADED.")
    ] = 256
    drain_seconds: Annotated[
        float, Field(ge=0, le=600, description="Time that calls in progress have to finish at a stop.")
    ] = 10.0
    probe_seconds: Annotated[
        float,
        Field(ge=0, le=60, description="Time between turning unhealthy and closing the listener, for load balancers."),
    ] = 0.0
    audit_mode: Annotated[
        Literal["strict", "best_effort"],
        Field(
            description="Whether an answer waits for its audit event (strict) or may be given without (best_effort)."
        ),
    ] = "strict"
    audit_lists: Annotated[
        Literal["best_effort", "strict"],
        Field(description="Whether lists and prepared runs wait for their audit event in strict mode too."),
    ] = "best_effort"
    audit_checkpoints: Annotated[
        Path | None,
        Field(description="File of the audit's signed checkpoints; else audit-checkpoints.jsonl in the data folder."),
    ] = None
    audit_signing_key: Annotated[
        Path | None,
        Field(
            description="PEM file of the Ed25519 private key that signs them; else audit-signing-key.pem in the data "
            "folder, which is made at the first start."
        ),
    ] = None
    metrics_port: Annotated[
        int | None, Field(ge=0, le=65535, description="Port of the Prometheus metrics on loopback; none without it.")
    ] = None
    log_level: Annotated[
        Literal["debug", "info", "warning", "error"], Field(description="Least severe line logged.")
    ] = "info"
    log_format: Annotated[
        Literal["auto", "json", "console"],
        Field(description="How lines are written; auto is console on a terminal, else JSON."),
    ] = "auto"

    address: Annotated[str | None, Field(description="Client: the server to call.")] = None
    key: Annotated[SecretStr | None, Field(description="Client: the bearer key.")] = None

    @property
    def checkpoints_file(self) -> Path:
        """The file of signed checkpoints."""
        return self.audit_checkpoints or self.data_dir / "audit-checkpoints.jsonl"

    @property
    def signing_key_file(self) -> Path:
        """The file of the key that signs checkpoints; only when it was not named may it be made."""
        return self.audit_signing_key or self.data_dir / "audit-signing-key.pem"
