"""Measure how easy it is to find one's way in the source, and hold what has been reached.

    python3 scripts/house.py            print the table
    python3 scripts/house.py --check    also fail where a number is above its limit

The static part needs the standard library only. What one run passes through is measured with the
interpreter that has rankwise installed: that of .venv, if there is one, else this one.
"""

import argparse
import ast
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
import tokenize
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src" / "rankwise"
RUN_LIMIT_SECONDS = 120

# What each number may be at most. Lower them when the source allows it. A new capability may raise
# the first two by what it needs, and no other: 259 files and 43,762 lines stood before Grid Engine,
# PBS, ranks in containers and what else the documents wish for.
LIMITS: Mapping[str, float] = {
    "files": 268,
    "lines of code": 46527,
    "longest file": 600,
    "import depth": 12,
    "modules loaded by `echo hello`": 70,
    "files that `echo hello` runs through": 55,
    "switches between files of `echo hello`": 250,
    "files that a pool's controller runs through": 18,
    "class names that recur": 0,
    "base names that recur": 18,
    "places that call os.replace": 2,
    "places that call flock": 2,
}

# Calls, by the last part of their names, that tell of one mechanism.
MECHANISMS: Mapping[str, tuple[str, ...]] = {
    "os.replace": ("move",),
    "flock": ("flock", "lockf"),
    "prctl": ("prctl",),
    "killpg": ("killpg",),
    "hmac": ("compare_digest",),
    "listen on a socket": ("listen",),
}


@dataclass(frozen=True, kw_only=True)
class Module:
    """One file of the source."""

    name: str
    path: Path
    tree: ast.Module
    text: str

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    def lines_of_code(self) -> int:
        """Count lines that are neither blank nor a comment nor part of a docstring."""
        docstrings = {
            line
            for node in ast.walk(self.tree)
            if (text := _docstring(node)) is not None
            for line in range(text.lineno, (text.end_lineno or text.lineno) + 1)
        }
        found: set[int] = set()
        skipped = (tokenize.COMMENT, tokenize.NL, tokenize.NEWLINE, tokenize.INDENT)
        for token in tokenize.generate_tokens(io.StringIO(self.text).readline):
            if token.type not in (*skipped, tokenize.DEDENT, tokenize.ENDMARKER):
                found.update(range(token.start[0], token.end[0] + 1))
        return len(found - docstrings)


def _docstring(node: ast.AST) -> ast.Expr | None:
    """Return the string that documents a node, also one that stands below an attribute."""
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return node if isinstance(node.value.value, str) else None
    return None


def read_modules(source: Path = SOURCE) -> dict[str, Module]:
    """Return all modules of the source by their dotted names."""
    found = {}
    for path in sorted(source.rglob("*.py")):
        parts = path.relative_to(source.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        text = path.read_text()
        found[name] = Module(name=name, path=path, tree=ast.parse(text), text=text)
    return found


# Imports


def imports_at_load(module: Module, modules: Mapping[str, Module]) -> set[str]:
    """Return the modules of ours that are loaded with this one."""
    found: set[str] = set()
    for node in _at_load(module.tree.body):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif node.module is not None:
            for alias in node.names:
                longer = f"{node.module}.{alias.name}"
                found.add(longer if longer in modules else node.module)
    return {name for name in found if name in modules and name != module.name}


def _at_load(body: Iterable[ast.stmt]) -> Iterator[ast.Import | ast.ImportFrom]:
    for node in body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node
        elif isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.dump(node.test):
            yield from _at_load([*node.body, *node.orelse])
        elif isinstance(node, ast.Try):
            handled = [statement for handler in node.handlers for statement in handler.body]
            yield from _at_load([*node.body, *handled, *node.orelse, *node.finalbody])


def import_depth(modules: Mapping[str, Module]) -> int:
    """Return how many modules the longest chain of imports has; a cycle counts once."""
    imports = {name: imports_at_load(module, modules) for name, module in modules.items()}
    depths: dict[str, int] = {}
    path: set[str] = set()

    def depth(name: str) -> int:
        if name not in depths:
            path.add(name)
            below = [depth(one) for one in imports[name] if one not in path]
            path.discard(name)
            depths[name] = 1 + max(below, default=0)
        return depths[name]

    sys.setrecursionlimit(10_000)
    return max(depth(name) for name in modules)


# Names and mechanisms


def recurring_classes(modules: Mapping[str, Module]) -> list[str]:
    """Return public class names that are defined more than once."""
    counts = Counter(
        node.name
        for module in modules.values()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    return sorted(name for name, count in counts.items() if count > 1)


def recurring_files(modules: Mapping[str, Module]) -> list[str]:
    """Return names of files that are there more than once."""
    counts = Counter(
        module.path.stem for module in modules.values() if not module.path.stem.startswith("__")
    )
    return sorted(name for name, count in counts.items() if count > 1)


def mechanism_places(modules: Mapping[str, Module]) -> dict[str, list[str]]:
    """Return, for each mechanism, the files that call it."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in modules.values():
        called = {_name(node) for node in ast.walk(module.tree) if isinstance(node, ast.Call)}
        for mechanism, names in MECHANISMS.items():
            if called & set(names):
                found[mechanism].append(str(module.path.relative_to(SOURCE)))
    return found


def _name(call: ast.Call) -> str:
    """Return the last part of what is called; `move` for what moves a file, not for str.replace."""
    name = ast.unparse(call.func).rpartition(".")[2]
    if name not in ("replace", "rename"):
        return name
    is_of_os = ast.unparse(call.func).startswith("os.")
    is_of_path = isinstance(call.func, ast.Attribute) and len(call.args) == 1
    return "move" if is_of_os or (is_of_path and not call.keywords) else name


# One run

_TRACER = """
import json, os, sys, threading
SOURCE, OUT = sys.argv[1], sys.argv[2]
owner, codes, files, switches, last = os.getpid(), set(), set(), 0, {}
def look(frame, event, argument):
    global switches
    if event != "call" or os.getpid() != owner:
        return
    name = frame.f_code.co_filename
    # Bodies of modules and classes are not optimized code: they run when something is loaded.
    if name.startswith(SOURCE) and frame.f_code.co_flags & 1:
        codes.add(frame.f_code)
        files.add(name)
        # Each thread by itself: which of them runs next is chance, and no reader's path.
        if name != last.get(threading.get_ident()):
            switches += 1
            last[threading.get_ident()] = name
threading.setprofile(look)
sys.setprofile(look)
code = 0
try:
    sys.argv = sys.argv[3:]
    if sys.argv[0] == "rankwise":
        from rankwise.cli.main import main
        code = main()
    else:
        import pytest
        code = int(pytest.main(sys.argv[1:]))
except SystemExit as end:
    code = end.code
finally:
    sys.setprofile(None)
    if os.getpid() == owner:
        loaded = [name for name in sys.modules if name.partition(".")[0] == "rankwise"]
        with open(OUT, "w") as file:
            json.dump({"functions": len(codes), "files": len(files), "switches": switches,
                       "modules": len(loaded), "code": code}, file)
"""


def trace(*arguments: str, files: Mapping[str, str]) -> dict[str, int]:
    """Run rankwise or pytest on these files, and count what its process passes through."""
    inside = ROOT / ".venv" / "bin" / "python"
    python = str(inside) if inside.exists() else sys.executable
    with tempfile.TemporaryDirectory(prefix="rankwise-house-") as folder:
        for name, text in files.items():
            (Path(folder) / name).write_text(text)
        out = Path(folder) / "counted.json"
        done = subprocess.run(
            [python, "-c", _TRACER, str(SOURCE), str(out), *arguments],
            cwd=folder,
            env={**os.environ, "PATH": f"{Path(python).parent}{os.pathsep}{os.environ['PATH']}"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=RUN_LIMIT_SECONDS,
            check=False,
        )
        counted: dict[str, int] = json.loads(out.read_text()) if out.exists() else {"code": 1}
    if counted["code"]:
        raise SystemExit(f"{' '.join(arguments)} failed:\n{done.stdout}{done.stderr}")
    return counted


# The table


def measure() -> tuple[dict[str, float], list[str]]:
    """Return the numbers that have limits, and more lines to read."""
    modules = read_modules()
    lengths = sorted(module.lines for module in modules.values())
    code = sum(module.lines_of_code() for module in modules.values())
    # A slow machine looks at its run more often: the fewest switches of some tries count.
    jobs = [trace("rankwise", "run", "hello.yaml", files={"hello.yaml": HELLO}) for _ in range(4)]
    job = min(jobs, key=lambda counted: counted["switches"])
    pool = trace(
        *("pytest", "-q", "-p", "no:cacheprovider", "--n-workers=2"),
        files={"test_hello.py": "def test_hello(): pass\n", "pytest.ini": "[pytest]\n"},
    )
    places = mechanism_places(modules)
    classes, names = recurring_classes(modules), recurring_files(modules)
    numbers: dict[str, float] = {
        "files": len(modules),
        "lines of code": code,
        "longest file": lengths[-1],
        "import depth": import_depth(modules),
        "modules loaded by `echo hello`": job["modules"],
        "files that `echo hello` runs through": job["files"],
        "switches between files of `echo hello`": job["switches"],
        "files that a pool's controller runs through": pool["files"],
        "class names that recur": len(classes),
        "base names that recur": len(names),
        "places that call os.replace": len(places["os.replace"]),
        "places that call flock": len(places["flock"]),
    }
    more = [
        f"lines: {sum(lengths)}",
        f"lines of a file: median {statistics.median(lengths):g}, p90 {_p90(lengths)}",
        f"functions of `echo hello`: {job['functions']}",
        f"classes that recur: {', '.join(classes) or 'none'}",
        f"files that recur: {', '.join(names) or 'none'}",
        *(f"{name}: {len(found)} ({', '.join(found)})" for name, found in places.items()),
    ]
    return numbers, more


def _p90(lengths: list[int]) -> int:
    return lengths[int(len(lengths) * 0.9)]


HELLO = """\
type: command
command: echo hello
"""


def main() -> int:
    parser = argparse.ArgumentParser(description="Measure the source.")
    parser.add_argument("--check", action="store_true", help="fail where a number is too large")
    arguments = parser.parse_args()
    numbers, more = measure()
    too_large = []
    for name, number in numbers.items():
        is_too_large = number > LIMITS[name]
        too_large += [name] if is_too_large else []
        mark = "  TOO LARGE" if is_too_large else ""
        print(f"{name:<46} {number:>8g}   at most {LIMITS[name]:g}{mark}")
    print(*more, sep="\n")
    return 1 if arguments.check and too_large else 0


if __name__ == "__main__":
    sys.exit(main())
