"""The environments of a matrix in HTML: each one that there is, once."""

from __future__ import annotations

from rankwise.report.environments import Environment
from rankwise.report.facts import cut
from rankwise.report.markup import Markup, joined, tag
from rankwise.report.matrix import Cell, Matrix
from rankwise.report.words import counted, listed, size

_MOST_NAMES = 12
_LONGEST = 80


def environment_key(one: Environment) -> str:
    """Name what programs see of a runtime; the same for cells that share it."""
    return f"{one.python} {sorted(one.packages.items())}"


def environments_list(matrix: Matrix, *, room: int) -> Markup:
    """List the distinct sets of packages with the cells that have them, and the machines."""
    cells: dict[str, list[Cell]] = {}
    for cell in matrix.in_order:
        if cell.environment is not None:
            cells.setdefault(environment_key(cell.environment), []).append(cell)
    if not cells:
        return Markup("")
    parts = [tag("h3", "Machines", class_="later"), _machines(matrix)]
    parts.append(tag("h3", "Environments", class_="later"))
    left = room - sum(len(part.encode()) for part in parts)
    for number, them in enumerate(cells.values()):
        parts.append(_environment(them, number))
        left -= len(parts[-1].encode())
        if left < 0:
            hidden = len(cells) - number - 1
            if hidden:
                parts.append(tag("p", f"And {counted(hidden, 'more environment')}.", class_="soft"))
            break
    return joined(parts)


def environment_numbers(matrix: Matrix) -> dict[str, int]:
    """Number the environments in the order in which they are listed."""
    keys = (environment_key(cell.environment) for cell in matrix.in_order if cell.environment)
    return {key: number for number, key in enumerate(dict.fromkeys(keys))}


def _environment(cells: list[Cell], number: int) -> Markup:
    one = cells[0].environment
    assert one is not None
    names = [f"{cell.runtime} on {cell.machine}" for cell in cells]
    items = (
        tag("li", cut(name, _LONGEST), " ", tag("b", cut(version, _LONGEST)))
        for name, version in one.packages.items()
    )
    head = f"{cells[0].runtime}: {one.python}, {counted(len(one.packages), 'package')}"
    where = cut(listed(names, most=_MOST_NAMES), 1000)
    content = tag(
        "div",
        tag("p", f"In {where}.", class_="soft", id=f"environment-{number}"),
        tag("ul", *items, class_="packages"),
    )
    return tag("details", tag("summary", cut(head, 200)), content)


def _machines(matrix: Matrix) -> Markup:
    heads = ("machine", "host", "CPU", "cores", "memory", "GPUs", "system", "CPU features")
    rows = []
    for machine in matrix.machines:
        found = (matrix.cell(runtime, machine) for runtime in matrix.runtimes)
        one = next((cell.environment for cell in found if cell and cell.environment), None)
        if one is None:
            said = tag("td", "nothing ran there that could say", class_="soft", colspan="7")
            rows.append(tag("tr", tag("td", cut(machine, _LONGEST), class_="p"), said))
            continue
        gpus = f"{', '.join(one.gpus)}, driver {one.driver}" if one.gpus else "none"
        values = (
            machine,
            one.host,
            one.cpu,
            str(one.cores or ""),
            size(one.memory) if one.memory else "",
            gpus,
            ", ".join(one.system.values()),
            " ".join(sorted(one.flags)),
        )
        rows.append(tag("tr", *(tag("td", cut(value, 300)) for value in values)))
    head = tag("thead", tag("tr", *(tag("th", name, scope="col") for name in heads)))
    table = tag("table", head, tag("tbody", *rows), class_="machines")
    return tag("div", table, class_="table", tabindex="0")
