"""The Ed25519 keys of checkpoints, as PEM files."""

import contextlib
import os
import tempfile
from pathlib import Path

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_private_key,
    load_pem_public_key,
)

from substrate.domain.errors import InvalidConfig

_UNREADABLE = (ValueError, TypeError, UnsupportedAlgorithm)


def signing_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key in `path`; raise InvalidConfig, which says what to do, when there is none."""
    try:
        key = load_pem_private_key(_read(path), password=None)
    except _UNREADABLE:
        raise _no_key(path, "private") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise _no_key(path, "private")
    return key


def public_key(path: Path) -> Ed25519PublicKey:
    """Return the public key in `path`; raise InvalidConfig, which says what to do, when there is none."""
    try:
        key = load_pem_public_key(_read(path))
    except _UNREADABLE:
        raise _no_key(path, "public") from None
    if not isinstance(key, Ed25519PublicKey):
        raise _no_key(path, "public")
    return key


def made_signing_key(path: Path) -> Ed25519PrivateKey:
    """Return the private key in `path`, made first if there is none, with its public key beside it.

    The public key's file ends in ``.pub.pem`` in place of the suffix. Raises InvalidConfig.
    """
    try:
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            _put(path, _private_pem(Ed25519PrivateKey.generate()), 0o600)
        key = signing_key(path)
        public = path.with_suffix(".pub.pem")
        if not public.exists():
            _put(public, key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo), 0o644)
    except OSError as error:
        raise InvalidConfig(
            summary=f"The key that signs checkpoints cannot be made in {path} ({error.strerror}); set "
            "SUBSTRATE_AUDIT_SIGNING_KEY to the PEM file of an Ed25519 private key."
        ) from None
    return key


def _private_pem(key: Ed25519PrivateKey) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _put(path: Path, content: bytes, mode: int) -> None:
    """Put a file in place whole, so that nobody reads half a key, unless another server has done so meanwhile."""
    descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    fresh = Path(name)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        fresh.chmod(mode)
        with contextlib.suppress(FileExistsError):
            path.hardlink_to(fresh)
    finally:
        fresh.unlink()


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InvalidConfig(
            summary=f"{path} cannot be read ({error.strerror}); name the PEM file of an Ed25519 key, such as one made "
            "by `openssl genpkey -algorithm ed25519`."
        ) from None


def _no_key(path: Path, kind: str) -> InvalidConfig:
    return InvalidConfig(summary=f"{path} holds no Ed25519 {kind} key in PEM without a password; name another file.")
