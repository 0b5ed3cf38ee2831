"""Models of the site file: types of single values, and the tables made of the classes of data."""

from __future__ import annotations

import dataclasses
import re
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, Union, get_type_hints

import pydantic
from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from rankwise.checks.json_path import steps_of
from rankwise.documents import common, site_models, values
from rankwise.documents.common import Conflict, Model
from rankwise.documents.messages import choice
from rankwise.documents.site_models import KUBERNETES, LOCAL
from rankwise.documents.values import OWN_WORDS, check_that, listed_schema, one_or_more, wrong
from rankwise.documents.written import mapping_in
from rankwise.plugins import NOTIFIERS
from rankwise.wording import code, hint, quoted

# The syntax of Kubernetes: a label has at most 63 characters, other names are those of DNS.
_LABEL = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_NAMESPACE = re.compile(r"[a-z0-9](?:[-a-z0-9.]{0,251}[a-z0-9])?")
# By these labels we find our own objects: a label of the user must not look like one.
_OUR_LABELS = "rankwise.dev/"
# Minutes, and the other forms that sbatch has.
_TIME = re.compile(r"\d+(:\d+){0,2}|\d+-\d+(:\d+){0,2}|UNLIMITED|INFINITE", re.IGNORECASE)
_MPI = re.compile(r"mpirun|srun(-\w+)?")
# What we give ourselves, and could not find a job or a host without.
_OUR_SBATCH_OPTIONS = (
    *("--job-name", "-J", "--output", "-o", "--error", "-e", "--array", "-a", "--wrap"),
    *("--parsable", "--wait", "-W", "--nodes", "-N", "--open-mode", "--chdir", "-D"),
)
_WALL_TIME = re.compile(r"\d+:[0-5]\d:[0-5]\d")
_OUR_QSUB_OPTIONS = ("-N", "-o", "-e", "-j", "-t", "-J", "-terse", "-sync", "-I", "-S", "-C")
_OUR_SSH_OPTIONS = ("ControlMaster", "ControlPath", "ControlPersist", "BatchMode", "RemoteCommand")


def _is_folder(value: str) -> bool:
    # Kubernetes mounts nothing on a path with a `:`.
    return value.startswith("/") and bool(value.strip("/")) and ":" not in value


def _is_address(value: str) -> bool:
    return "@" in value and not any(ord(letter) < 32 for letter in value)


def _file_path(path: str, info: pydantic.ValidationInfo) -> str:
    return common.complete(
        path, info.context.folder if isinstance(info.context, common.ValidationContext) else Path()
    )


def _time(value: Any) -> str:
    is_number = isinstance(value, int) and not isinstance(value, bool) and value > 0
    if not is_number and not (isinstance(value, str) and _TIME.fullmatch(value)):
        raise wrong(f'must be minutes, or like "1:30:00" or "2-0", not {quoted(value)}')
    return str(value)


def _sbatch_option(value: str) -> str:
    # `--job-name=x` is as much ours as `--job-name`.
    name = value.partition("=")[0]
    if not value.startswith("-"):
        raise wrong(f'must be an option of sbatch, "--name=value" as one text, not {quoted(value)}')
    if name in _OUR_SBATCH_OPTIONS:
        raise wrong(f"cannot be {code(name)}, which rankwise sets itself")
    return value


def _wall_time(value: Any) -> str:
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return f"{value // 60}:{value % 60:02}:00"
    if not isinstance(value, str) or not _WALL_TIME.fullmatch(value):
        raise wrong(f'must be minutes, or like "1:30:00", not {quoted(value)}')
    return value


def _ssh_option(value: str) -> str:
    # Anywhere in the word and in any case: ssh takes `-oname=value` and `-o "Name value"` alike.
    if any(name.lower() in value.lower() for name in _OUR_SSH_OPTIONS):
        raise wrong(f"cannot be {code(value)}, which rankwise sets itself")
    return value


def _mpi(value: str) -> str:
    if not _MPI.fullmatch(value):
        raise wrong(choice(value, ("mpirun", "srun", "srun-pmi2", "srun-pmix")))
    return value


def _account(value: Any) -> int | None:
    if value == "image":
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise wrong(f'must be the number of a user, or "image", not {quoted(value)}')
    return value


def _labels(labels: dict[str, str]) -> dict[str, str]:
    for name, value in labels.items():
        if not _LABEL.fullmatch(value) or name.startswith(_OUR_LABELS):
            raise wrong(f"cannot have the label {name} = {quoted(value)}")
    return labels


def _command_line(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        # A name is one word, with or without blanks around it.
        value = re.sub(r"\$\{\{\s*(\w+)\s*\}\}", r"${{\1}}", value)
        try:
            value = shlex.split(value)
        except ValueError as error:
            raise wrong(f"is no command line: {error}") from None
    if not isinstance(value, list) or not value or not all(isinstance(one, str) for one in value):
        raise wrong('must be a command line such as ["cloud", "create"]')
    return tuple(value)


def _captures(value: Any) -> tuple[tuple[str, str], ...]:
    """Read what to find in the output of `create`: paths into JSON, or patterns with a group."""
    if isinstance(value, str):
        value = {"id": value}
    if not isinstance(value, Mapping):
        raise wrong(f'must be like {{ id = "$.id" }}, not {quoted(value)}')
    for name, rule in value.items():
        # `name` and `command` have values of rankwise's own in every template.
        if not isinstance(rule, str) or not name.isidentifier() or name in ("name", "command"):
            raise wrong(f"cannot have {name} = {quoted(rule)}")
        try:
            if site_models.is_path(rule):
                steps_of(rule)
            elif re.compile(rule).groups != 1:
                raise ValueError("must have one group, which is the value")
        except (ValueError, re.error) as error:
            raise wrong(f"has {name} = {quoted(rule)}: {error}") from None
    return tuple(value.items())


def _site_name(value: str) -> str:
    if not value or "*" in value[:-1]:
        raise wrong("is no name: a `*` may stand at its end only")
    return value


FilePath = Annotated[values.Text, AfterValidator(_file_path)]
Image = values.Image
Folder = Annotated[
    values.Text,
    check_that(_is_folder, 'must be a folder such as "/rankwise"'),
    AfterValidator(lambda value: value.rstrip("/")),
]
PodFolder = Annotated[values.Text, check_that(_is_folder, 'must be a folder such as "/data"')]
Port = Annotated[int, *values.whole_number(1, 65535)]
PodPort = Annotated[int, *values.whole_number(1024, 65535)]
KeepSeconds = Annotated[int, *values.whole_number(60, 10**9)]
Idle = Annotated[values.Number, check_that(lambda value: value >= 0, "must be 0 or more")]
Account = Annotated[int | None, BeforeValidator(_account), WithJsonSchema({})]
Namespace = Annotated[
    values.Text, check_that(_NAMESPACE.fullmatch, "must be the name of a namespace")
]
Labels = Annotated[dict[str, str], AfterValidator(_labels)]
Toleration = dict[Literal["key", "operator", "value", "effect", "tolerationSeconds"], Any]
Tolerations = tuple[Toleration, ...]
SbatchTime = Annotated[str, BeforeValidator(_time), WithJsonSchema({"type": ["string", "integer"]})]
WallTime = Annotated[
    str, BeforeValidator(_wall_time), WithJsonSchema({"type": ["string", "integer"]})
]
SlurmMpi = Annotated[values.Text, AfterValidator(_mpi)]
_LISTED = (BeforeValidator(one_or_more), listed_schema({"type": "string"}))
SbatchOptions = Annotated[
    tuple[Annotated[values.Text, AfterValidator(_sbatch_option)], ...], *_LISTED
]
_QsubWord = check_that(
    lambda value: value not in _OUR_QSUB_OPTIONS, "cannot be an option that rankwise sets itself"
)
QsubOptions = Annotated[tuple[Annotated[values.Text, _QsubWord], ...], *_LISTED]
SshOptions = Annotated[tuple[Annotated[values.Text, AfterValidator(_ssh_option)], ...], *_LISTED]
Hosts = Annotated[
    tuple[Annotated[values.Text, check_that(values.is_word, "must be a host")], ...], *_LISTED
]
CommandLine = Annotated[
    tuple[str, ...], BeforeValidator(_command_line), listed_schema({"type": "string"})
]
Captures = Annotated[
    tuple[tuple[str, str], ...], BeforeValidator(_captures), WithJsonSchema({"type": "object"})
]
_Address = Annotated[str, check_that(_is_address, 'must be an address such as "me@example.org"')]
Address = Annotated[_Address, Field(alias="from")]
Addresses = Annotated[
    tuple[_Address, ...], check_that(bool, 'must be addresses such as "me@example.org"'), *_LISTED
]
Url = Annotated[
    values.Text,
    check_that(lambda value: value.startswith(("https://", "http://")), "must begin with https://"),
]
SiteName = Annotated[str, AfterValidator(_site_name)]


class SiteTable(Model):
    """A table of the site file."""

    needed: ClassVar[tuple[str, ...]] = ()
    """Keys without which there is no default that works."""

    @classmethod
    def descriptions(cls) -> dict[str, str]:
        """Return the texts below the fields of the class of data as well."""
        described = common.field_docstrings(site_models.ComputeConfig)
        for config in (CONFIGS.get(base, object) for base in cls.__mro__):
            for each in reversed(config.__mro__[:-1]):
                described = described | common.field_docstrings(each)
        return described | super().descriptions()


class KubernetesTable(SiteTable):
    """Pods of a Kubernetes cluster."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        way = contents.get("code")
        if way in ("image", "claim") and not str(contents.get("code_path", "")).startswith("/"):
            why = f'code = "{way}" needs code_path: the folder in pods, such as "/code"'
            yield Conflict(("code",), why)
        if way == "claim" and not contents.get("claims"):
            yield Conflict(("code",), 'code = "claim" needs claims, such as { "data" = "/data" }')


class SshTable(SiteTable):
    """Hosts with a login."""

    needed: ClassVar[tuple[str, ...]] = ("hosts",)

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        if contents.get("hosts") == []:
            yield Conflict(("hosts",), 'there are no hosts: hosts = ["gpu1", "user@gpu2"]')


class CommandTable(SiteTable):
    """Instances that a provider's command line makes."""

    needed: ClassVar[tuple[str, ...]] = ("create", "run", "delete")
    _given: ClassVar[Mapping[str, tuple[str, ...]]] = {
        "run": ("command",),
        "send": ("source", "target"),
        "fetch": ("source", "target"),
    }

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        captured = tuple(mapping_in(contents, "capture")) or ("id",) * ("capture" in contents)
        for name in site_models.TEMPLATES:
            # A command line may be one text or a list of words; both may have references.
            words = one_or_more(contents.get(name, ()))
            used = {each for word in words for each in common.references_in(word)}
            # What is made is known by what `create` has said, and not before that.
            more = () if name in ("create", "list") else captured
            needed = cls._given.get(name, ())
            times = ("start", "end") if name == "metrics" else ()
            known = ("name", *needed, *more, *times)
            for each in sorted(used - set(known)):
                remedy = hint(each, known, f"there are {', '.join(known)}")
                yield Conflict((name,), f"`{name}` has ${{{{{each}}}}}, which is unknown; {remedy}")
            for each in needed if words else ():
                if each not in used:
                    yield Conflict((name,), f"`{name}` must have ${{{{{each}}}}} in it")


class MailTable(SiteTable):
    """People to send mail, and the server for it."""

    needed: ClassVar[tuple[str, ...]] = ("host", "sender", "to")

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        if ("user" in contents) != ("password_secret" in contents):
            yield Conflict((), "`user` and `password_secret` go together")
        is_here = contents.get("host") in ("localhost", "127.0.0.1", "::1")
        if contents.get("security") == "none" and "user" in contents and not is_here:
            why = "without security, others can read the password on its way"
            yield Conflict(("security",), why)


class WebhookTable(SiteTable):
    """A chat that takes messages."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from cls.exactly_one(contents, ("url", "url_secret"), "a chat")


def _notifier(name: str) -> str:
    if problem := NOTIFIERS.problem(name):
        raise wrong(f"cannot be {code(name)}: {problem}")
    return name


class NotifierTable(SiteTable):
    """The notifier of another package, which has keys of its own."""

    model_config = pydantic.ConfigDict(extra="allow")

    kind: Annotated[values.Text, AfterValidator(_notifier)]
    """Name of the notifier."""
    when: Literal["always", "failed"] = "always"
    """Always, or only if a run has failed."""


class RuntimeTable(SiteTable):
    """Where commands run: an interpreter, packages, an image or the current Python."""

    current: values.Bool = False
    """`true`: the Python that rankwise is installed in."""
    python: values.Text = ""
    """An interpreter, or a virtual environment's folder; with `requirements`: a version."""
    requirements: tuple[values.Text, ...] = ()
    """Packages of a virtual environment that rankwise makes."""
    image: common.ImageSource | None = None
    """A container image, a `.sif` file, or `{ build = "Dockerfile" }`."""
    engine: Literal["docker", "podman", "apptainer", ""] = ""
    """The container engine; empty: the first that works."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        yield from common.runtime_conflicts(cls, contents, ("requirements", "image", "current"))
        if contents.get("current") is False:
            yield Conflict(("current",), "`current` can only be true")


class Defaults(SiteTable):
    """Names for documents without a compute or a runtime."""

    compute: values.Text = ""
    """The `[compute.NAME]` for documents without one; empty: `local`."""
    runtime: values.Text = ""
    """The `[runtime.NAME]` for documents without one; empty: `current`."""


class LocalTable(SiteTable):
    """This machine."""


class SlurmTable(SiteTable):
    """A cluster with Slurm."""


class GridEngineTable(SiteTable):
    """A cluster with Grid Engine."""


class PbsTable(SiteTable):
    """A cluster with PBS."""


class BatchTable(SiteTable):
    """A cluster with the batch system of another package."""


class UnreadTable(SiteTable):
    """A table of a batch system that is not loaded: whatever is in it."""

    model_config = pydantic.ConfigDict(extra="ignore")


CONFIGS: Mapping[type, type] = {
    SlurmTable: site_models.SlurmConfig,
    GridEngineTable: site_models.GridEngineConfig,
    PbsTable: site_models.PbsConfig,
    KubernetesTable: site_models.KubernetesConfig,
    SshTable: site_models.SshConfig,
    CommandTable: site_models.CommandConfig,
    MailTable: site_models.MailConfig,
    WebhookTable: site_models.WebhookConfig,
}
"""The classes of data whose fields are the keys of tables."""
BACKENDS: Mapping[str, type[SiteTable]] = {
    LOCAL: LocalTable,
    site_models.SLURM: SlurmTable,
    site_models.GRID_ENGINE: GridEngineTable,
    site_models.PBS: PbsTable,
    KUBERNETES: KubernetesTable,
    site_models.SSH: SshTable,
    site_models.COMMAND: CommandTable,
}
# What the annotations of the classes of data mean.
_NAMES = {"values": values, "tables": sys.modules[__name__]}
OF_ALL = ("cores", "gpus", "memory", "features", "enforce_limits")


def _keys(config: Any, needed: Sequence[str] = ()) -> dict[str, Any]:
    """Return the fields of a class of data as pydantic takes them."""
    # A batch system of another package has its settings, and their types, in a module of its own.
    hints = get_type_hints(config, localns=_NAMES, include_extras=True)
    found: dict[str, Any] = {}
    for each in dataclasses.fields(config):
        default: Any = each.default
        if each.default_factory is not dataclasses.MISSING:
            default = Field(default_factory=each.default_factory)
        if each.name in needed or default is dataclasses.MISSING:
            default = ...
        found[each.name] = (hints[each.name], default)
    return found


def _model(base: type[SiteTable], config: Any = None, **more: Any) -> Any:
    """Make the model of a table whose keys are the fields of its class of data."""
    config = config or CONFIGS.get(base)
    # `name` and `place` come from where the table stands, not from a key.
    keys = _keys(config, base.needed) if config else {}
    own = {name: key for name, key in keys.items() if name not in ("name", "place", *more)}
    return pydantic.create_model(base.__name__, __base__=base, __doc__=base.__doc__, **more, **own)


def compute_model(backend: str, table: type[SiteTable] | None = None, config: Any = None) -> Any:
    """Make the model of a compute: keys of all computes, and those of its backend."""
    # Elsewhere a batch system or Kubernetes decides what fits.
    names = (*OF_ALL, "oversubscribe") if backend in (LOCAL, site_models.SSH) else OF_ALL
    of_all = _keys(site_models.ComputeConfig)
    return _model(
        table or BACKENDS[backend],
        config,
        backend=(Literal[backend], LOCAL if backend == LOCAL else ...),
        **{name: of_all[name] for name in names},
    )


def any_compute(more: Sequence[Any] = ()) -> Any:
    """Return the type of a compute of any backend, with models of more backends."""
    models = (*map(compute_model, BACKENDS), *more)
    union: Any = Union[models]  # noqa: UP007  it is made of a list
    return Annotated[union, Field(discriminator="backend")]


def _notify_kind(given: Any) -> str | None:
    if not isinstance(given, Mapping):
        return None
    # The kinds of other packages have models that are not known here.
    if kind := given.get("kind"):
        return kind if kind in [*NOTIFIERS.ours] else "other"
    if "url" in given or "url_secret" in given:
        return "webhook"
    return "mail" if "host" in given else None


if TYPE_CHECKING:
    # The models are made here, so a checker does not know them.
    AnyCompute = Any
    AnyNotify = Any
else:
    AnyCompute = any_compute()
    AnyNotify = Annotated[
        Annotated[_model(MailTable), pydantic.Tag("mail")]
        | Annotated[_model(WebhookTable), pydantic.Tag("webhook")]
        | Annotated[NotifierTable, pydantic.Tag("other")],
        pydantic.Discriminator(
            _notify_kind,
            custom_error_type=OWN_WORDS,
            custom_error_message="{message}",
            custom_error_context={
                "message": "must have a `host`, for mail, or a `url` or `url_secret`, for chats"
            },
        ),
    ]


class SiteFile(Model):
    """The site file: what the names in documents mean here."""

    compute: dict[SiteName, AnyCompute] = Field(default={})
    """Where to run, by name."""
    runtime: dict[SiteName, RuntimeTable] = Field(default={})
    """What commands run in, by name."""
    notify: dict[SiteName, AnyNotify] = Field(default={})
    """Recipients of the results of runs, by name."""
    inputs: dict[values.Text, FilePath] = Field(default={})
    """Files and folders here for inputs that are elsewhere, by their names there."""
    defaults: Defaults = Field(default_factory=Defaults)
    """For documents that name no compute, or no runtime."""

    @classmethod
    def conflicts(cls, contents: Mapping[str, Any]) -> Iterator[Conflict]:
        if mapping_in(contents, "compute", LOCAL).get("backend", LOCAL) != LOCAL:
            why = f'the compute "{LOCAL}" is always this machine; take another name'
            yield Conflict(("compute", LOCAL, "backend"), why)
