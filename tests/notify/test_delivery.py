from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from markupsafe import Markup

from rankwise.documents.site import find_site
from rankwise.documents.site_models import MailConfig, NotifyConfig, WebhookConfig
from rankwise.errors import InputError
from rankwise.notify.delivery import Outbox, deliver, notify, retry
from rankwise.notify.message import Notice, notice_of
from rankwise.reports.data_formats import csv_report
from rankwise.reports.model import ReportData
from tests.notify.mailboxes import PASSWORD, USER, chat, free_port, mail_server
from tests.reports.other_packages import install

SITE = """
[notify.team]
host = "localhost"
port = {port}
user = "{user}"
password_secret = "MAIL_PASSWORD"
from = "rankwise <robot@example.org>"
to = ["ada@example.org", "grace@example.org"]
ca = "{ca}"
"""
OPEN_SITE = """
[notify.team]
host = "127.0.0.1"
port = {port}
security = "none"
from = "robot@example.org"
to = "ada@example.org"
"""
SMALL = Notice(
    run="job-1",
    subject="job-1 failed",
    is_good=False,
    text="<b>it</b> failed & ```broke```\n",
    page=Markup("<p>it failed</p>"),
)


class Told:
    """Remembers what was said."""

    def __init__(self) -> None:
        self.words: list[str] = []

    def __call__(self, text: str) -> None:
        self.words.append(text)


def test_mail_arrives_encrypted_with_plots_and_the_pdf(
    tmp_path: Path, data: ReportData, certificate: tuple[Path, Path]
) -> None:
    say, outbox = Told(), Outbox(tmp_path)
    with mail_server(certificate) as mailbox:
        site = SITE.format(port=mailbox.port, user=USER, ca=certificate[0])
        (tmp_path / "rankwise.toml").write_text(site)
        secrets = {"MAIL_PASSWORD": PASSWORD}
        notice = notice_of(data, with_files=True)
        assert deliver(notice, ["team"], outbox, folder=tmp_path, say=say, secrets=secrets)
    assert say.words == [f"team was notified of {data.run.id}"]
    assert mailbox.was_encrypted == [True]
    assert outbox.waiting() == []
    [letter] = mailbox.letters
    assert letter["To"] == "ada@example.org, grace@example.org"
    assert letter["Subject"].startswith("sweep-1 failed: 45 cases: 2 crashed and 43 passed.")
    plain, page = letter.get_body(("plain",)), letter.get_body(("html",))
    assert plain is not None
    assert page is not None
    assert "SIGSEGV" in plain.get_content()
    shown = page.get_content()
    assert "cid:plot0" in shown
    parts = {part.get("Content-ID"): part for part in letter.walk() if part.get("Content-ID")}
    for number in range(4):
        assert f"cid:plot{number}" in shown
        picture = parts[f"<plot{number}>"].get_content()
        assert picture.startswith(b"\x89PNG\r\n")
    pdf, table = letter.iter_attachments()
    assert pdf.get_filename() == "sweep-1.pdf"
    assert pdf.get_content().startswith(b"%PDF-")
    assert table.get_filename() == "sweep-1.csv"
    assert table.get_content().splitlines() == csv_report(data).splitlines()


def test_a_server_that_is_down_is_said_and_the_mail_arrives_later(tmp_path: Path) -> None:
    say, outbox, port = Told(), Outbox(tmp_path), free_port()
    (tmp_path / "rankwise.toml").write_text(OPEN_SITE.format(port=port))
    assert not deliver(SMALL, ["team"], outbox, folder=tmp_path, say=say, pauses=(0.01, 0.01))
    [waiting] = outbox.waiting()
    assert waiting.tries == 3
    assert "Connection refused" in say.words[-1]
    assert "rankwise notify --retry" in say.words[-1]
    assert not retry(outbox, say=say)
    assert outbox.waiting()[0].tries == 4
    with mail_server(port=port) as mailbox:
        assert retry(outbox, say=say)
        assert retry(outbox, say=say)
    assert [letter["Subject"] for letter in mailbox.letters] == ["job-1 failed"]
    assert outbox.waiting() == []


def test_a_password_that_is_wrong_is_tried_once_and_said(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    say, outbox = Told(), Outbox(tmp_path)
    with mail_server(certificate) as mailbox:
        site = SITE.format(port=mailbox.port, user=USER, ca=certificate[0])
        (tmp_path / "rankwise.toml").write_text(site)
        secrets = {"MAIL_PASSWORD": "guessed"}
        assert not deliver(SMALL, ["team"], outbox, folder=tmp_path, say=say, secrets=secrets)
    assert "535" in say.words[-1]
    assert "guessed" not in say.words[-1]
    assert outbox.waiting()[0].tries == 1
    assert mailbox.letters == []


def test_an_untrusted_server_gets_neither_password_nor_mail(
    tmp_path: Path, certificate: tuple[Path, Path]
) -> None:
    say, outbox = Told(), Outbox(tmp_path)
    with mail_server(certificate) as mailbox:
        site = SITE.format(port=mailbox.port, user=USER, ca="")
        (tmp_path / "rankwise.toml").write_text(site.replace('ca = ""\n', ""))
        secrets = {"MAIL_PASSWORD": PASSWORD}
        assert not deliver(
            SMALL, ["team"], outbox, folder=tmp_path, say=say, secrets=secrets, pauses=()
        )
    assert "certificate" in say.words[-1]
    assert mailbox.letters == []


def test_a_server_that_offers_no_encryption_gets_nothing(tmp_path: Path) -> None:
    say, outbox = Told(), Outbox(tmp_path)
    with mail_server() as mailbox:
        site = OPEN_SITE.format(port=mailbox.port).replace('security = "none"\n', "")
        (tmp_path / "rankwise.toml").write_text(site)
        assert not deliver(SMALL, ["team"], outbox, folder=tmp_path, say=say)
    assert "STARTTLS" in say.words[-1]
    assert mailbox.letters == []


def test_a_secret_without_a_value_is_named(tmp_path: Path) -> None:
    say, outbox = Told(), Outbox(tmp_path)
    (tmp_path / "rankwise.toml").write_text('[notify.chat]\nurl_secret = "CHAT"\n')
    assert not deliver(SMALL, ["chat"], outbox, folder=tmp_path, say=say, secrets={})
    assert "rankwise.toml:1: no value for the secret CHAT: export CHAT=..." in say.words[-1]


def test_the_address_of_a_webhook_is_not_told_when_it_is_wrong(tmp_path: Path) -> None:
    say, outbox = Told(), Outbox(tmp_path)
    (tmp_path / "rankwise.toml").write_text('[notify.chat]\nurl_secret = "CHAT"\n')
    secrets = {"CHAT": "http://127.0.0.1:9/services/tell nobody"}
    assert not deliver(
        SMALL, ["chat"], outbox, folder=tmp_path, say=say, secrets=secrets, pauses=()
    )
    assert "control characters" in say.words[-1]
    assert "nobody" not in say.words[-1]
    assert "nobody" not in outbox.waiting()[0].trouble


def test_chats_get_the_form_that_they_take(tmp_path: Path) -> None:
    say, outbox = Told(), Outbox(tmp_path)
    with chat() as (url, taken):
        (tmp_path / "rankwise.toml").write_text(
            '[notify.slack]\nurl_secret = "CHAT"\n'
            f'[notify.teams]\nurl = "{url}"\nstyle = "teams"\n'
            f'[notify.mine]\nurl = "{url}"\nstyle = "json"\nwhen = "failed"\n'
        )
        names, secrets = ["slack", "teams", "mine"], {"CHAT": f"{url}\n"}
        assert deliver(SMALL, names, outbox, folder=tmp_path, say=say, secrets=secrets)
    slack, teams, mine = map(json.loads, taken)
    assert slack["text"] == "job-1 failed"
    words = slack["blocks"][0]["text"]["text"]
    assert words == "```\n&lt;b&gt;it&lt;/b&gt; failed &amp; ` ` `broke` ` `\n\n```"
    card = teams["attachments"][0]["content"]
    # A TextBlock would make Markdown of it.
    assert {one["type"] for one in card["body"]} == {"RichTextBlock"}
    lines = [one["inlines"][0]["text"] for one in card["body"]]
    assert lines == ["job-1 failed", *SMALL.text.splitlines()]
    assert mine == {"run": "job-1", "is_good": False, "subject": "job-1 failed", "text": SMALL.text}


def test_a_chat_that_stumbles_is_asked_again(tmp_path: Path) -> None:
    say, outbox = Told(), Outbox(tmp_path)
    with chat(answers=[503, 500]) as (url, taken):
        (tmp_path / "rankwise.toml").write_text(f'[notify.chat]\nurl = "{url}"\n')
        assert deliver(SMALL, ["chat"], outbox, folder=tmp_path, say=say, pauses=(0.01, 0.01))
    assert len(taken) == 1


def test_who_wants_failures_only_hears_of_nothing_else(tmp_path: Path) -> None:
    say, outbox = Told(), Outbox(tmp_path)
    port = free_port()
    site = f'[notify.chat]\nurl = "http://127.0.0.1:{port}"\nwhen = "failed"\n'
    (tmp_path / "rankwise.toml").write_text(site)
    good = Notice(run="job-1", subject="job-1 passed", is_good=True, text="", page=Markup(""))
    assert deliver(good, ["chat"], outbox, folder=tmp_path, say=say)
    assert outbox.waiting() == []


def test_a_message_that_another_process_is_sending_is_left_to_it(tmp_path: Path) -> None:
    say, outbox = Told(), Outbox(tmp_path)
    with mail_server() as mailbox:
        (tmp_path / "rankwise.toml").write_text(OPEN_SITE.format(port=mailbox.port))
        one = outbox.add("team", "job-1", str(tmp_path), b"Subject: news\r\n\r\nnone\r\n")
        with outbox.claimed(one) as is_ours:
            assert is_ours
            assert not retry(Outbox(tmp_path), say=say)
            assert say.words == ["another process is sending job-1 to team"]
            assert mailbox.letters == []
        assert retry(outbox, say=say)
        with outbox.claimed(one) as is_ours:
            assert not is_ours
    assert [letter["Subject"] for letter in mailbox.letters] == ["news"]


def test_old_news_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    say, outbox = Told(), Outbox(tmp_path)
    outbox.add("team", "job-1", str(tmp_path), b"")
    monkeypatch.setattr("time.time", lambda: 1e12)
    assert retry(outbox, say=say)
    assert outbox.waiting() == []
    assert say.words == ["team was not notified of job-1 for a week: the message is dropped"]


def test_a_subject_cannot_begin_another_header(data: ReportData) -> None:
    run = replace(data.run, reason="no\r\nBcc: everybody@example.org")
    subject = notice_of(replace(data, run=run), with_files=False).subject
    assert "\n" not in subject
    assert "\r" not in subject


PIGEON = """\
class Pigeon:
    wants_files = False

    def __init__(self, config):
        self.settings = config.settings

    def write(self, notice):
        return notice.subject.encode()

    def send(self, message, secrets):
        if secrets.get("LOFT_KEY") != "open-sesame":
            raise ValueError(f"the loft is locked for {secrets['LOFT_KEY']}")
        with open(self.settings["loft"], "ab") as file:
            file.write(message)
"""


def test_a_notifier_of_another_package_sends_and_keeps_secrets(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "pigeons", PIGEON, group="rankwise.notifiers", pigeon="Pigeon")
    site, loft = tmp_path / "rankwise.toml", tmp_path / "loft"
    site.write_text(f'[notify.ada]\nkind = "pigeon"\nloft = "{loft}"\nkey_secret = "LOFT_KEY"\n')
    say, outbox = Told(), Outbox(tmp_path)
    wrong = {"LOFT_KEY": "wrong-key"}
    assert not deliver(SMALL, ["ada"], outbox, folder=tmp_path, say=say, secrets=wrong, pauses=())
    (waiting,) = outbox.waiting()
    assert waiting.trouble.startswith("ValueError: the loft is locked for ")
    assert "wrong-key" not in "".join([*say.words, waiting.trouble])
    assert retry(outbox, say=say, secrets={"LOFT_KEY": "open-sesame"})
    assert loft.read_text() == "job-1 failed"
    site.write_text('[notify.ada]\nkind = "pigeons"\n')
    with pytest.raises(InputError, match=r"rankwise\.toml:2: .*did you mean `pigeon`"):
        find_site(tmp_path)


BIRDS = """\
class Lame:
    def __init__(self, config):
        raise ValueError("it cannot fly")

class Pigeon:
    wants_files = False

    def __init__(self, config):
        self.loft = config.settings["loft"]

    def write(self, notice):
        return notice.run.encode()

    def send(self, message, secrets):
        with open(self.loft, "ab") as file:
            file.write(message)
"""


def test_a_notifier_that_cannot_be_made_does_not_stop_the_other_notices(
    tmp_path: Path, data: ReportData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    install(tmp_path, "birds", BIRDS, group="rankwise.notifiers", lame="Lame", pigeon="Pigeon")
    loft = tmp_path / "loft"
    tables = f'[notify.ada]\nkind = "lame"\n[notify.bob]\nkind = "pigeon"\nloft = "{loft}"\n'
    (tmp_path / "rankwise.toml").write_text(tables)
    run = replace(data.run, source=str(tmp_path / "job.yaml"))
    say = Told()
    assert not notify(replace(data, run=run), ["ada", "bob"], say=say)
    assert loft.read_text() == run.id
    assert any("ada was not told" in words and "it cannot fly" in words for words in say.words)


# notify table

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


def test_a_missing_recipient_is_reported_with_the_nearest_name(tmp_path: Path) -> None:
    (tmp_path / "rankwise.toml").write_text(MAIL)
    with pytest.raises(
        InputError, match=r'there is no \[notify\] table "teams"; did you mean "team"'
    ):
        find_site(tmp_path, environ={}).notify("teams")
