"""The names of computes and runtimes, looked up in the site files."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from rankwise.errors import InputError
from rankwise.plan import RuntimeChoice
from rankwise.site.choices import (
    CURRENT,
    KUBERNETES,
    LOCAL,
    ComputeChoice,
    Layer,
    MailChoice,
    WebhookChoice,
)
from rankwise.site.page import did_you_mean, shown, toml_key

_T = TypeVar("_T")
_REMEDIES = {
    "compute": 'backend = "local"',
    "runtime": "current = true, python = …, requirements = […] or image = …",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What names mean here. The first layer that knows a name decides."""

    file: Path
    """The site file of the project, or where it would be."""
    layers: Sequence[Layer] = ()

    def compute(self, name: str = "") -> ComputeChoice:
        """Give the compute that a document calls `name`; empty: the default."""
        name = name or self.default_compute
        found = self._named_compute(name)
        if found is None:
            local = self._named_compute(LOCAL) or ComputeChoice()
            return dataclasses.replace(local, name=name, is_mapped=name == LOCAL)
        return dataclasses.replace(found, name=name)

    def runtime(self, name: str = "") -> RuntimeChoice:
        """Give the runtime that a document calls `name`; empty: the default."""
        name = name or self.default_runtime
        found = self._named_runtime(name) or RuntimeChoice()
        return dataclasses.replace(found, name=name)

    def notify(self, name: str) -> MailChoice | WebhookChoice:
        """Give whom `name` means; InputError: no site file says so."""
        for layer in self.layers:
            if name in layer.notified:
                return layer.notified[name]
        known = self.notified
        hint = did_you_mean(name, known) or (
            f"; there are {_listed(known)}" if known else f"; write [notify.{toml_key(name)}] there"
        )
        raise InputError(f'{shown(self.file)}: there is nobody called "{name}" to tell{hint}')

    @property
    def notified(self) -> tuple[str, ...]:
        """Name all who can be told."""
        return tuple(dict.fromkeys(name for layer in self.layers for name in layer.notified))

    @property
    def default_compute(self) -> str:
        return next((a.default_compute for a in self.layers if a.default_compute), LOCAL)

    @property
    def default_runtime(self) -> str:
        return next((a.default_runtime for a in self.layers if a.default_runtime), CURRENT)

    def has_compute(self, name: str) -> bool:
        """Tell whether a site file has the compute, or it is always there."""
        return name in ("", LOCAL) or self._named_compute(name) is not None

    def has_runtime(self, name: str) -> bool:
        """Tell whether a site file has the runtime, or it is always there."""
        return name in ("", CURRENT) or self._named_runtime(name) is not None

    def check(
        self,
        *,
        computes: Mapping[str, str],
        runtimes: Mapping[str, str],
        is_strict: bool = False,
    ) -> tuple[str, ...]:
        """Give a notice for each kind that has names which no site file has.

        The names come with the places in the document where they stand. InputError if it is strict.
        """
        unknown_computes = {n: at for n, at in computes.items() if not self.has_compute(n)}
        unknown_runtimes = {n: at for n, at in runtimes.items() if not self.has_runtime(n)}
        if is_strict and (unknown_computes or unknown_runtimes):
            raise InputError(
                "\n".join(
                    [self._error("compute", n, at) for n, at in unknown_computes.items()]
                    + [self._error("runtime", n, at) for n, at in unknown_runtimes.items()]
                )
            )
        notices = []
        if unknown_computes:
            notices.append(self._notice("compute", list(unknown_computes), "this machine"))
        # Where nothing but images runs, the compute's own stands in, and the plan says which.
        has_images = computes and all(self._runs_images(name) for name in computes)
        if unknown_runtimes and not has_images:
            notices.append(self._notice("runtime", list(unknown_runtimes), "the current Python"))
        return tuple(notices)

    def stand_in(self, name: str, backend: str) -> str | None:
        """Name the only compute with a backend, for one that no site file has; None: as it is."""
        if self.has_compute(name):
            return None
        layers = (layer.computes.items() for layer in self.layers)
        known = {one for layer in layers for one, choice in layer if choice.backend == backend}
        return known.pop() if len(known) == 1 and not any("*" in one for one in known) else None

    def _runs_images(self, name: str) -> bool:
        found = self._named_compute(name or self.default_compute)
        return found is not None and found.backend == KUBERNETES

    def _named_compute(self, name: str) -> ComputeChoice | None:
        return _look_up(name, [layer.computes for layer in self.layers], always_there=LOCAL)

    def _named_runtime(self, name: str) -> RuntimeChoice | None:
        return _look_up(name, [layer.runtimes for layer in self.layers], always_there=CURRENT)

    def _notice(self, kind: str, names: Sequence[str], stand_in: str) -> str:
        listed = _listed(names)
        is_one = len(names) == 1
        return (
            f"{kind if is_one else f'{kind}s'} {listed} {'is' if is_one else 'are'} not in "
            f"{shown(self.file)}: {stand_in} stands in for {'it' if is_one else 'them'}; to change "
            f"that, write [{kind}.{toml_key(names[0])}] there"
        )

    def _error(self, kind: str, name: str, at: str) -> str:
        layers = [a.computes if kind == "compute" else a.runtimes for a in self.layers]
        hint = did_you_mean(name, [known for names in layers for known in names])
        place = f"{at}: " if at else ""
        then = f"{hint} If not," if hint else ";"
        return (
            f'{place}{kind} "{name}" is not in {shown(self.file)}{then} '
            f"write [{kind}.{toml_key(name)}] there with {_REMEDIES[kind]}"
        )


def _listed(names: Sequence[str]) -> str:
    quoted = [f'"{name}"' for name in names]
    return " and ".join(filter(None, [", ".join(quoted[:-1]), quoted[-1]]))


def _look_up(name: str, layers: Sequence[Mapping[str, _T]], *, always_there: str) -> _T | None:
    """Find a name: in the first layer that has it or a pattern for it, the longest one."""
    for names in layers:
        if name in names:
            return names[name]
        # A pattern for everything is not meant for what needs no site file.
        if name != always_there and (fitting := [p for p in names if _fits(name, p)]):
            return names[max(fitting, key=len)]
    return None


def _fits(name: str, pattern: str) -> bool:
    return pattern.endswith("*") and name.startswith(pattern[:-1])
