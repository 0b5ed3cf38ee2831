"""Speed, measured beside what it is compared with, in one run.

    python -m bench                    everything
    python -m bench isolated faults    only these
    python -m bench --repetitions 11   more patience

The peers (bench/peers.py) are installed from the package index when a bench first needs them. One
that cannot be, or that fails, is shown with the reason.

Both sides of a comparison get the same flags and take turns, so that whatever else the machine
does meets both. The numbers are medians. They are printed with the machine's load, and never
asserted: under load a ratio says little.
"""
