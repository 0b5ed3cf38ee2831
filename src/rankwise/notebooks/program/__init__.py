"""Run notebooks, and leave behind what became of them.

    INTERPRETER FOLDER NOTEBOOK… --out FOLDER [options]     see --help
    INTERPRETER FOLDER --serve [--jobs N]                   orders come as lines of JSON

This folder can be copied to any machine and run by any interpreter that has nbclient: it imports
nothing of ours but itself, and that relatively. In FOLDER it leaves the executed notebook (whatever
became of it), a page of HTML, the pictures, `outcome.json` and a JUnit file with a case for each
cell. The exit code is 0 only if all passed.

The interpreter of the kernel is `python`, as PATH has it: that is the one of the runtime, which
need not be the one that runs this program. Every kernel is in a session of its own; a process
beside us, the supervisor, ends them all when this process is gone, however that came about.
"""
