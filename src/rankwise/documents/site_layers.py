"""From tables of the site file to data, with those of batch systems that other packages add."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from types import GenericAlias
from typing import Any, TypeVar

from pydantic import Field, create_model

from rankwise.documents import site_models, site_tables
from rankwise.documents.common import ValidationContext, runtime_choice
from rankwise.documents.messages import validated
from rankwise.documents.site_models import LOCAL
from rankwise.documents.site_tables import BACKENDS, CONFIGS, OF_ALL, any_compute, compute_model
from rankwise.documents.written import LocatedMapping, Problem, mapping_in
from rankwise.plugins import BATCH_SYSTEMS

_T = TypeVar("_T")


def read_layer(
    contents: LocatedMapping, file: Path, shown: str
) -> tuple[site_models.Layer | None, list[Problem]]:
    """Make a layer of what a site file says; None if there are problems, which come with it."""
    context = ValidationContext(folder=file.parent, mapping="a table")
    for name, table in mapping_in(contents, "compute").items():
        # pydantic chooses the model by the backend, so it must be there; an empty one is then
        # reported.
        if isinstance(table, LocatedMapping) and "backend" not in table:
            table.put("backend", LOCAL if name == LOCAL else "", table.position, table.position)
    systems = _batch_systems(contents, context)
    said, problems = validated(_with_systems(systems), contents, context)
    if said is None:
        return None, problems

    def place(section: str, name: str) -> str:
        return f"{shown}{contents[section].keys_at[name]}"

    layer = site_models.Layer(
        file=file,
        computes={
            name: _compute(table, systems, name=name, place=place("compute", name))
            for name, table in said.compute.items()
        },
        runtimes={
            name: runtime_choice(table, name, file.parent) for name, table in said.runtime.items()
        },
        notified={
            name: _notified(table, name=name, place=place("notify", name))
            for name, table in said.notify.items()
        },
        inputs=said.inputs,
        default_compute=said.defaults.compute,
        default_runtime=said.defaults.runtime,
    )
    return layer, problems


def _batch_systems(
    contents: LocatedMapping, context: ValidationContext
) -> dict[str, type[site_models.BatchConfig] | None]:
    """Return the batch systems of other packages, and what the tables of those in use may have.

    None: no table can be read as one, because there is none, or it cannot be loaded.
    """
    computes = mapping_in(contents, "compute").values()
    tables = [each for each in computes if isinstance(each, LocatedMapping)]
    # Looking for packages takes time, and most site files need none.
    if all(not each["backend"] or each["backend"] in [*BACKENDS] for each in tables):
        return {}
    found: dict[str, type[site_models.BatchConfig] | None] = dict.fromkeys(BATCH_SYSTEMS.others())
    for table in tables:
        name = table["backend"]
        if not isinstance(name, str) or found.get(name, site_models.BatchConfig) is not None:
            continue
        try:
            found[name] = BATCH_SYSTEMS.load(name).Settings
        except ImportError as error:
            context.problems.append(Problem(table.values_at["backend"], str(error)))
    return found


def _with_systems(
    systems: Mapping[str, type[site_models.BatchConfig] | None],
) -> type[site_tables.SiteFile]:
    """Return the model of a site file that may also name these batch systems."""
    if not systems:
        return site_tables.SiteFile
    more = [
        compute_model(name, site_tables.BatchTable if config else site_tables.UnreadTable, config)
        for name, config in systems.items()
    ]
    computes: Any = GenericAlias(dict, (site_tables.SiteName, any_compute(more)))
    return create_model(
        "SiteFile", __base__=site_tables.SiteFile, compute=(computes, Field(default_factory=dict))
    )


def _filled(config: type[_T], table: site_tables.SiteTable, **more: Any) -> _T:
    """Make an object of a class of data with what a table says."""
    names = {each.name for each in dataclasses.fields(config)}  # type: ignore[arg-type]  # it is one
    # A table has keys that are not of this class: `backend`, and those of all computes.
    said = {name: value for name, value in table if name in names}
    return config(**said, **more)


def _compute(
    table: Any, systems: Mapping[str, type[site_models.BatchConfig] | None], **more: Any
) -> site_models.ComputeConfig:
    if table.backend != LOCAL:
        config = systems.get(table.backend) or CONFIGS[BACKENDS[table.backend]]
        key = "batch" if issubclass(config, site_models.BatchConfig) else table.backend
        more[key] = _filled(config, table)
    said = {name: getattr(table, name) for name in ("backend", *OF_ALL)}
    return site_models.ComputeConfig(
        **said, oversubscribe=getattr(table, "oversubscribe", False), **more
    )


def _notified(table: site_tables.SiteTable, **more: Any) -> site_models.NotifyConfig:
    if isinstance(table, site_tables.NotifierTable):
        return _filled(site_models.NotifierConfig, table, settings=table.model_extra, **more)
    if isinstance(table, site_tables.WebhookTable):
        return _filled(site_models.WebhookConfig, table, **more)
    mail = _filled(site_models.MailConfig, table, **more)
    # The standard ports of mail for each kind of security.
    port = mail.port or {"starttls": 587, "tls": 465, "none": 25}[mail.security]
    return dataclasses.replace(mail, port=port)
