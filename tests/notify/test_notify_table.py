from __future__ import annotations

from pathlib import Path

import pytest

from rankwise.documents.site import find_site
from rankwise.documents.site_models import MailConfig, NotifyConfig, WebhookConfig
from rankwise.errors import InputError

MAIL = '[notify.team]\nhost = "smtp.example.org"\nfrom = "a@example.org"\nto = "b@example.org"\n'


def site_of(folder: Path, text: str) -> NotifyConfig:
    (folder / "rankwise.toml").write_text(text)
    return find_site(folder, environ={}).notify("team")


@pytest.mark.parametrize(
    ("more", "port"), [("", 587), ('security = "tls"', 465), ('security = "none"', 25)]
)
def test_the_port_follows_from_the_security(tmp_path: Path, more: str, port: int) -> None:
    choice = site_of(tmp_path, MAIL + more)
    assert isinstance(choice, MailConfig)
    assert choice.port == port
    assert choice.to == ("b@example.org",)


def test_a_table_with_an_address_of_the_web_is_a_chat(tmp_path: Path) -> None:
    choice = site_of(tmp_path, '[notify.team]\nurl = "https://example.org/hook"\n')
    assert isinstance(choice, WebhookConfig)
    assert (choice.style, choice.when) == ("slack", "always")


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        (
            "[notify.team]\n",
            "rankwise.toml:1: `notify.team` must have a `host`, for mail, or a `url` or `url_secret`, for chats",
        ),
        (f'{MAIL}kind = ["mail"]\n', "5: `notify.team.kind` must be text, not a list"),
        (f"{MAIL}usr = 1\n", "rankwise.toml:5: unknown field `usr`: did you mean `user`?"),
        (
            f'{MAIL}security = "ssl"\n',
            "`notify.team.security` must be `starttls`, `tls` or `none`, not 'ssl'",
        ),
        (f'{MAIL}user = "me"\n', "`user` and `password_secret` go together"),
        (
            f'{MAIL}security = "none"\nuser = "me"\npassword_secret = "PW"\n',
            "without security, others can read the password on its way",
        ),
        (
            MAIL.replace("b@example.org", "b\\r\\nBcc: c@d"),
            "`notify.team.to` must be an address such as \"me@example.org\", not 'b\\r\\nBcc: c@d'",
        ),
        (
            MAIL.replace('"b@example.org"', "[]"),
            '`notify.team.to` must be addresses such as "me@example.org", not a list',
        ),
        (f"{MAIL}port = 0\n", "`notify.team.port` must be at least 1, not 0"),
        (f'{MAIL}when = "never"\n', "`notify.team.when` must be `always` or `failed`, not 'never'"),
        ('[notify.team]\nurl = "file:///etc/passwd"\n', "must begin with https://"),
        (
            '[notify.team]\nurl = "https://a"\nurl_secret = "B"\n',
            "a chat has `url` or `url_secret`, not both",
        ),
    ],
)
def test_mistakes_are_named_with_their_line(tmp_path: Path, text: str, complaint: str) -> None:
    with pytest.raises(InputError) as caught:
        site_of(tmp_path, text)
    assert complaint in str(caught.value)


def test_who_is_not_there_is_named_with_those_who_are(tmp_path: Path) -> None:
    (tmp_path / "rankwise.toml").write_text(MAIL)
    with pytest.raises(
        InputError, match=r'there is no \[notify\] table "teams"; did you mean "team"'
    ):
        find_site(tmp_path, environ={}).notify("teams")
