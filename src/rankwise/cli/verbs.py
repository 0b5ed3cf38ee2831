"""The verbs, and help that needs nothing else: `rankwise --help` must not wait for imports."""

from __future__ import annotations

import os
import sys
import textwrap

VERBS = {
    "run": "Run documents here and now, and show what their processes write",
    "submit": "Run documents in the background, and print the run's id at once",
    "plan": "Show what would run, and start nothing",
    "validate": "Check documents, and start nothing",
    "export": "Write jobs as YAML for Kubernetes, its operators or Azure ML",
    "status": "Show how a run stands",
    "list": "List runs, the newest first",
    "logs": "Show what the processes of a run have written",
    "explain": "Say why a run failed: who was first, and what it wrote last",
    "serve": "Show the runs of this store in a browser, as they happen",
    "report": "Write a report of a run, for people or programs",
    "compare": "Say whether B is slower than A, or that nobody can know",
    "trend": "Show how a metric was in all runs, and where it has changed",
    "notify": "Tell somebody what became of a run, by mail or into a chat",
    "cancel": "End a run and everything that it has started",
    "resume": "Go on with a run that nobody drives any more",
    "clean": "Give back what was left on other machines",
    "rollback": "Put an earlier release of a pipeline in use again",
    "doctor": "Check this machine and its computes, and say what to change",
    "init": "Write a commented document to start from, or a file for a CI",
    "schema": "Print the JSON Schema of documents, for editors",
}

_USAGE = "Usage: rankwise VERB [OPTIONS] [ARGUMENTS]"
_ABOUT = "Run what is written in YAML documents: distributed jobs, on this machine or a cluster."
_EXAMPLES = (
    ("rankwise init MpiJob job.yaml", "a document to start from"),
    ("rankwise run job.yaml", "run it"),
    ("rankwise explain", "why it failed"),
)
_OPTIONS = (
    ("--help", "Show this; with a verb, all about it"),
    ("--version", "Show the version"),
    ("--install-completion", "Have this shell complete verbs, options and runs"),
)
_USUAL, _WIDEST = 80, 100


def help_text() -> str:
    """Give what `rankwise --help` shows."""
    width = min(_window_width(), _WIDEST)
    return "\n".join(
        [
            *textwrap.wrap(_USAGE, width),
            "",
            *textwrap.wrap(_ABOUT, width),
            "",
            "Verbs:",
            *_columns(list(VERBS.items()), width),
            "",
            "Options:",
            *_columns(_OPTIONS, width),
            "",
            "For example:",
            *_columns(_EXAMPLES, width),
            "",
            *textwrap.wrap("rankwise VERB --help says more about each.", width),
        ]
    )


def unknown(verb: str) -> str:
    """Say that there is no such verb, and which may be meant."""
    import difflib

    what = "option" if verb.startswith("-") else "verb"
    near = difflib.get_close_matches(verb, VERBS, n=1)
    meant = f"did you mean {near[0]!r}?" if near else "see rankwise --help"
    return f"there is no {what} {verb!r}: {meant}"


def _window_width() -> int:
    """Give the width of the window; shutil could, but takes as long to load as all of this."""
    if (given := os.environ.get("COLUMNS", "")).isdigit():
        return max(20, int(given))
    try:
        return os.get_terminal_size(sys.stdout.fileno()).columns
    except (OSError, ValueError):
        return _USUAL


def _columns(rows: tuple[tuple[str, str], ...] | list[tuple[str, str]], width: int) -> list[str]:
    """Set pairs in two columns; in a narrow window, one below the other."""
    first = max(len(name) for name, _ in rows) + 4
    lines = []
    for name, text in rows:
        if first + 20 > width:
            lines.append(f"  {name}")
            lines += textwrap.wrap(text, width, initial_indent="    ", subsequent_indent="    ")
        else:
            lines += textwrap.wrap(
                text,
                width,
                initial_indent=f"  {name}".ljust(first),
                subsequent_indent=" " * first,
            )
    return lines
