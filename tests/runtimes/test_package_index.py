"""pip's settings, as uv takes them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rankwise.runtimes.uv import settings_for_uv


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


def write(file: Path, *lines: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("\n".join(lines) + "\n")


def settings(home: Path, **variables: str) -> dict[str, str]:
    return settings_for_uv({"HOME": str(home), **variables}, root=home.parent / "root")


def test_without_settings_there_are_none(home: Path) -> None:
    assert settings(home) == {}


def test_the_index_of_pip_is_taken(home: Path) -> None:
    write(
        home / ".config/pip/pip.conf",
        "[global]",
        "index-url = https://mirror/simple",
        "cert = /etc/ca.pem",
        "trusted-host = mirror",
        "[install]",
        "no-index = true",
        "find-links =",
        "    /opt/wheels",
        "    /opt/more",
    )
    assert settings(home) == {
        "UV_DEFAULT_INDEX": "https://mirror/simple",
        "SSL_CERT_FILE": "/etc/ca.pem",
        "UV_INSECURE_HOST": "mirror",
        "UV_NO_INDEX": "1",
        "UV_FIND_LINKS": "/opt/wheels,/opt/more",
    }


def test_more_indexes_are_all_looked_at_as_pip_does(home: Path) -> None:
    variables = {"PIP_EXTRA_INDEX_URL": "file:///a  file:///b"}
    assert settings(home, **variables) == {
        "UV_INDEX": "file:///a file:///b",
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    }
    assert settings(home, **variables, UV_INDEX_STRATEGY="first-index") == {
        "UV_INDEX": "file:///a file:///b"
    }


def test_later_files_go_before_earlier_ones_and_variables_before_all(home: Path) -> None:
    def index(**variables: str) -> str:
        return settings(home, **variables)["UV_DEFAULT_INDEX"]

    told = home / "told.conf"
    write(told, "[global]", "index-url = told")
    assert index(PIP_CONFIG_FILE=str(told)) == "told"
    write(home.parent / "root/etc/pip.conf", "[global]", "index-url = machine")
    assert index(PIP_CONFIG_FILE=str(told)) == "machine"
    write(home / ".pip/pip.conf", "[global]", "index_url = old place")
    assert index() == "old place"
    write(home / ".config/pip/pip.conf", "[global]", "index-url = user")
    assert index() == "user"
    write(home / "xdg/pip/pip.conf", "[global]", "index-url = xdg")
    assert index(XDG_CONFIG_HOME=str(home / "xdg")) == "xdg"
    write(home.parent / "root/etc/pip.conf", "[install]", "index-url = for install")
    assert index() == "for install"
    assert index(PIP_INDEX_URL="variable") == "variable"
    assert settings(home, PIP_CONFIG_FILE=os.devnull) == {}


@pytest.mark.parametrize("name", ["UV_DEFAULT_INDEX", "UV_INDEX_URL", "UV_FIND_LINKS"])
def test_a_uv_that_has_been_told_itself_is_left_alone(home: Path, name: str) -> None:
    pip = {"PIP_INDEX_URL": "a", "PIP_EXTRA_INDEX_URL": "b", "PIP_CERT": "c"}
    assert settings(home, **pip, **{name: "own"}) == {"SSL_CERT_FILE": "c"}
    assert settings(home, **pip, **{name: "own"}, SSL_CERT_FILE="own") == {}


def test_a_uv_with_a_file_of_its_own_is_left_alone(home: Path) -> None:
    write(home / ".config/uv/uv.toml", "")
    assert settings(home, PIP_INDEX_URL="a") == {}


def test_files_that_pip_could_not_read_are_left_to_it(home: Path) -> None:
    write(home / ".config/pip/pip.conf", "index-url = outside of a section")
    (home / ".pip").mkdir()
    (home / ".pip/pip.conf").write_bytes(b"[global]\nindex-url = \xff\n")
    (home / "folder").mkdir()
    assert settings(home, PIP_CONFIG_FILE=str(home / "folder")) == {}
