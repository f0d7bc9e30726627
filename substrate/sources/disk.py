"""Reads a skill's files from disk: regular files of bounded size, never through a symbolic link."""

import errno
import os
import stat
from pathlib import Path

MAX_FILE_BYTES = 1024 * 1024

# Without O_NONBLOCK the opening of a named pipe waits for somebody to write to it.
_FLAGS = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC

LINK = "is a symbolic link, which is never followed."


class Unreadable(Exception):
    """Something on disk that is not read; the text says why, as the end of a sentence about its path."""


def list_folder(folder: str) -> list[os.DirEntry[str]]:
    """Return what `folder` holds, sorted by name; raise Unreadable."""
    try:
        with os.scandir(folder) as entries:
            return sorted(entries, key=lambda entry: entry.name)
    except OSError as error:
        raise Unreadable(_reason(error)) from None


def read_regular(path: str | Path, limit: int = MAX_FILE_BYTES) -> bytes:
    """Return the bytes of the regular file at `path`; raise Unreadable for anything else, and above `limit` bytes."""
    try:
        file = os.open(path, _FLAGS)
        try:
            found = os.fstat(file)
            if not stat.S_ISREG(found.st_mode):
                raise Unreadable("is not a regular file.")
            if found.st_size > limit:
                raise Unreadable(f"has more than {limit:,} bytes.")
            # Asked for one byte more, so that a file that grows meanwhile is not taken for a whole one.
            data = os.read(file, found.st_size + 1)
        finally:
            os.close(file)
    except OSError as error:
        raise Unreadable(_reason(error)) from None
    if len(data) != found.st_size:
        raise Unreadable("changed while it was read.")
    return data


def _reason(error: OSError) -> str:
    return LINK if error.errno == errno.ELOOP else f"cannot be read: {error.strerror}."
