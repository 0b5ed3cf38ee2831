"""SQLite's errors in words: what is wrong with which file, and what helps."""

from __future__ import annotations

import sqlite3
from pathlib import Path

from rankwise.errors import StoreFailure

_ELSEWHERE = "or choose another store with --store"


def is_busy(error: sqlite3.Error) -> bool:
    """Tell whether others are at it, so that a later try may do."""
    return _code(error) in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL}


def is_shut(error: sqlite3.Error) -> bool:
    """Tell whether the file, or one that must be beside it, could not be opened."""
    return _code(error) in {sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY}


def describe(path: Path, error: sqlite3.Error, *, patience: float) -> StoreFailure:
    """Make the failure that a person sees of an error of SQLite."""
    return StoreFailure(f"{path}: {_describe(path, error, patience)}")


def describe_os_error(path: Path, error: OSError) -> StoreFailure:
    """Make the failure that a person sees of a folder that cannot be made or looked into."""
    why = (error.strerror or str(error)).lower()
    return StoreFailure(
        f"{path}: the store's folder cannot be used: {why} ({error.filename or path.parent}). "
        f"Get the rights to it or remove what is in the way, {_ELSEWHERE}."
    )


def not_writable(path: Path) -> StoreFailure:
    """Say that a store can be read at most."""
    return StoreFailure(f"{path}: {_not_writable(path)}")


def _not_writable(path: Path) -> str:
    return (
        f"the store cannot be written. Get the right to write {path.parent} and the files in it "
        f"(a disk that is mounted read-only does not give it), {_ELSEWHERE}."
    )


def _describe(path: Path, error: sqlite3.Error, patience: float) -> str:
    match _code(error):
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED | sqlite3.SQLITE_PROTOCOL:
            return (
                f"another process has kept the store locked for {patience:g} s. "
                f"`fuser {path}` shows who has it open: let it go on or end it, then try again."
            )
        case sqlite3.SQLITE_FULL:
            return "the disk is full. Free some space and try again; what was stored is kept."
        case sqlite3.SQLITE_IOERR:
            return (
                f"the store cannot be read or written ({_name(error)}). The disk may be full, over "
                "its quota or broken: free some space, or see to it, and try again."
            )
        case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
            return _not_writable(path)
        case sqlite3.SQLITE_CANTOPEN:
            return (
                f"the store cannot be opened. Get the rights to read and write {path.parent} and "
                f"the files in it, {_ELSEWHERE}."
            )
        case sqlite3.SQLITE_NOTADB:
            return (
                "this file is not a store of rankwise, nor any database. "
                f"Move it away, {_ELSEWHERE}."
            )
        case sqlite3.SQLITE_CORRUPT:
            return (
                f"the store is damaged ({error}). Move {path} away, and {path.name}-wal and "
                f"{path.name}-shm with it, {_ELSEWHERE}; logs and outcomes in "
                f"{path.parent / 'runs'} are not touched."
            )
    return f"the store has failed: {error} ({_name(error)})."


def _code(error: sqlite3.Error) -> int:
    """Give the primary code; errors of Python's own module have none."""
    return int(getattr(error, "sqlite_errorcode", 0)) & 0xFF


def _name(error: sqlite3.Error) -> str:
    return str(getattr(error, "sqlite_errorname", type(error).__name__))
