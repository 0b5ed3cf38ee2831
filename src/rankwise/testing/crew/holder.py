"""What a job of ours runs in its batch script: it holds the allocation for as long as we are there.

It calls the controller, says which environment the job has, and ends when the line ends: a client
that is gone, however that happened, leaves no allocation behind.
"""

from __future__ import annotations

import json
import os
import sys

from rankwise.testing import wire
from rankwise.testing.crew.allocation import LINE

HOLDER = "holder"


def main() -> int:
    """Hold the place until the controller hangs up."""
    line = json.loads(os.environ.pop(LINE))
    try:
        channel = wire.Channel.open(wire.Address(**line["address"]), line["secret"], HOLDER)
        channel.send({"kind": "held"}, json.dumps(dict(os.environ)).encode())
        channel.receive()
    except (OSError, wire.WireError) as error:
        print(f"rankwise: the run that asked for this allocation is gone: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
