"""Frames of those who only start a program are left out of what is quoted."""

from __future__ import annotations

from rankwise.reports.failures import without_starters

_WRITTEN = """\
before
Traceback (most recent call last):
  File "<frozen runpy>", line 198, in _run_module_as_main
  File "/venv/lib/python3.11/site-packages/mpi4py/__main__.py", line 8, in <module>
    main()
  File "/venv/lib/python3.11/site-packages/mpi4py/run.py", line 53, in run_command_line
    run_path(sys.argv[0], run_name="__main__")
    ^^^^^^^^^^^^^^^^
  File "/usr/lib/python3.11/runpy.py", line 291, in run_path
  File "boom.py", line 4, in <module>
    raise ValueError("boom")
ValueError: boom
  indented output of a program
""".splitlines()


def test_only_the_frames_of_the_program_stay() -> None:
    assert without_starters(_WRITTEN) == [
        "before",
        "Traceback (most recent call last):",
        '  File "boom.py", line 4, in <module>',
        '    raise ValueError("boom")',
        "ValueError: boom",
        "  indented output of a program",
    ]


def test_other_output_stays_as_it_is() -> None:
    lines = ["", "  File", '  File "mine.py", line 3', "    x", "plain"]
    assert without_starters(lines) == lines
