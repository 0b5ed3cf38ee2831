"""The interpreter that rankwise itself runs in."""

from __future__ import annotations

import sys

from rankwise.plan import RuntimeChoice
from rankwise.runtime.contract import Prepared, Say
from rankwise.runtime.interpreter import folders_for


def prepare(choice: RuntimeChoice, say: Say) -> Prepared:
    """Have commands find this interpreter as `python`."""
    del choice, say
    path = folders_for(sys.executable)
    if sys.prefix != sys.base_prefix:
        return Prepared(path=path, environment={"VIRTUAL_ENV": sys.prefix})
    # Another environment may be active than the one that rankwise was called from.
    return Prepared(path=path, unset=("VIRTUAL_ENV",))
