"""Where pip has been told to find packages, told to uv.

uv does not read pip's settings, and behind a mirror, or with wheels of one's own in a folder, they
are what makes the difference.
"""

from __future__ import annotations

import configparser
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

_UV_SETTINGS = (
    *("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "UV_EXTRA_INDEX_URL", "UV_FIND_LINKS"),
    *("UV_NO_INDEX", "UV_CONFIG_FILE", "UV_OFFLINE"),
)
_TRUE = ("1", "true", "yes", "on")


def settings_for_uv(environ: Mapping[str, str], root: Path = Path("/")) -> dict[str, str]:
    """Give the variables that have uv find what pip finds; none if uv has settings of its own."""
    pip = _settings_of_pip(environ, root)
    found = {}
    if "cert" in pip and "SSL_CERT_FILE" not in environ:
        found["SSL_CERT_FILE"] = pip["cert"]
    if _is_uv_set_up(environ, root):
        return found
    if "index-url" in pip:
        found["UV_DEFAULT_INDEX"] = pip["index-url"]
    if extra := pip.get("extra-index-url", "").split():
        found["UV_INDEX"] = " ".join(extra)
        # As pip does: else the first index that has a package at all would hide the others.
        if "UV_INDEX_STRATEGY" not in environ:
            found["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if links := pip.get("find-links", "").split():
        found["UV_FIND_LINKS"] = ",".join(links)
    if hosts := pip.get("trusted-host", "").split():
        found["UV_INSECURE_HOST"] = " ".join(hosts)
    if pip.get("no-index", "").lower() in _TRUE:
        found["UV_NO_INDEX"] = "1"
    return found


def _is_uv_set_up(environ: Mapping[str, str], root: Path) -> bool:
    files = (_config_home(environ) / "uv" / "uv.toml", root / "etc/uv/uv.toml")
    return any(name in environ for name in _UV_SETTINGS) or any(map(_is_file, files))


def _settings_of_pip(environ: Mapping[str, str], root: Path) -> dict[str, str]:
    """Merge what pip merges: files, the later over the earlier; `install` over them; variables."""
    sections: dict[str, dict[str, str]] = {"global": {}, "install": {}}
    for file in _files_of_pip(environ, root):
        parser = configparser.RawConfigParser()
        try:
            parser.read_string(file.read_text())
        except (OSError, ValueError, configparser.Error):
            continue  # pip itself will complain
        for section, found in sections.items():
            if parser.has_section(section):
                found.update({_plain(name): value for name, value in parser.items(section)})
    variables = {
        _plain(name.removeprefix("PIP_")): value
        for name, value in environ.items()
        if name.startswith("PIP_") and value
    }
    return {**sections["global"], **sections["install"], **variables}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-").removeprefix("--")


def _files_of_pip(environ: Mapping[str, str], root: Path) -> Iterator[Path]:
    """Give the files that pip reads, in its order."""
    told = environ.get("PIP_CONFIG_FILE", "")
    if told == os.devnull:
        return
    if told:
        yield Path(told)
    for folder in environ.get("XDG_CONFIG_DIRS", "").split(os.pathsep):
        yield (Path(folder) if folder else root / "etc/xdg") / "pip" / "pip.conf"
    yield root / "etc/pip.conf"
    if home := environ.get("HOME"):
        yield Path(home) / ".pip" / "pip.conf"
    yield _config_home(environ) / "pip" / "pip.conf"
    yield Path(sys.prefix) / "pip.conf"


def _config_home(environ: Mapping[str, str]) -> Path:
    return Path(environ.get("XDG_CONFIG_HOME") or Path(environ.get("HOME", "/")) / ".config")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:
        return False
