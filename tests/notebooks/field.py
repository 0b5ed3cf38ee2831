"""Notebooks that others ship with their packages, and what becomes of each of them.

They are taken from the package index, in the versions that are written here. All are run with a
kernel that has IPython and nothing else, in the folder that they are shipped in.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

KEPT = Path(__file__).resolve().parents[2] / ".venvs" / "notebooks"
PACKAGES = {
    "papermill": "papermill-2.7.0-py3-none-any.whl",
    "nbclient": "nbclient-0.11.0.tar.gz",
    "nbmake": "nbmake-1.5.5.tar.gz",
    "nbval": "nbval-0.11.0.tar.gz",
}
# A wheel needs no build, and these are the outcomes that others get wrong.
EVERY_DAY = ("simple_execute", "sysexit0", "keyboard_interrupt", "notimplemented_translator")

Expected = dict[str, tuple[str, str]]

PAPERMILL: Expected = {
    # It calls papermill, which is not installed where the kernel is.
    "binder": ("error", "cell 2: CalledProcessError"),
    "blank-vscode": ("passed", ""),
    # Written for Python 2, though it does not say so.
    "broken": ("error", "cell 1: SyntaxError: Missing parentheses"),
    "broken1": ("error", "cell 7: AssertionError"),
    # IPython 9 has it elsewhere.
    "broken2": ("error", "cell 2: ImportError: cannot import name 'display'"),
    "complex_parameters": ("error", "cell 1: SyntaxError"),
    # It sleeps for fourteen seconds.
    "gcs-simple_notebook": ("timed out", "cell 10 took longer than 6 s"),
    # It sleeps for a minute.
    "keyboard_interrupt": ("timed out", "cell 1 took longer than 6 s"),
    "line_magic_error": ("error", "cell 1: UsageError: Line magic function"),
    "nb_version_4.4": ("passed", ""),
    "no_parameters": ("passed", ""),
    "notimplemented_translator": ("missing kernel", "there is no kernel 'r'"),
    # It wants to be run in another folder.
    "read_check": ("error", "cell 2: AssertionError"),
    "report_mode_test": ("passed", ""),
    "result_no_exec": ("passed", ""),
    "s3-simple_notebook": ("passed", ""),
    "simple_execute": ("passed", ""),
    "sysexit": ("error", "cell 2: sys.exit()"),
    # A pass for papermill.
    "sysexit0": ("error", "cell 2: sys.exit(0)"),
    "sysexit1": ("error", "cell 2: sys.exit(1)"),
    "systemexit": ("error", "cell 2: sys.exit()"),
    "test_autosave": ("passed", ""),
    "test_logging": ("error", "No module named"),
    "test_notebooknode_io": ("passed", ""),
}
NBCLIENT: Expected = {
    "Autokill": ("kernel died", "was ended by SIGTERM, in cell 1"),
    "Check History in Memory": ("passed", ""),
    "Clear Output": ("passed", ""),
    "Disable Stdin": ("needs input", "cell 1 asks for input"),
    "Empty Cell": ("passed", ""),
    "Error": ("error", "cell 1: ZeroDivisionError: division by zero"),
    "Factorials": ("passed", ""),
    "HelloWorld": ("passed", ""),
    "Inline Image": ("passed", ""),
    # An endless loop.
    "Interrupt": ("timed out", "cell 1 took longer than 6 s"),
    "JupyterWidgets": ("error", "No module named 'ipywidgets'"),
    "Other Comms": ("passed", ""),
    "Output": ("error", "No module named 'ipywidgets'"),
    # These two wait for each other in a folder that nbclient's tests tell them of.
    "Parallel Execute A": ("error", "KeyError: 'NBEXECUTE_TEST_PARALLEL_TMPDIR'"),
    "Parallel Execute B": ("error", "KeyError: 'NBEXECUTE_TEST_PARALLEL_TMPDIR'"),
    "SVG": ("passed", ""),
    "Skip Exceptions with Cell Tags": ("passed", ""),
    "Skip Exceptions": ("error", "cell 1: Exception: message"),
    "Skip Execution with Cell Tag": ("passed", ""),
    "Sleep1s": ("passed", ""),
    "Unicode": ("passed", ""),
    "UnicodePy3": ("passed", ""),
    "update-display-id": ("passed", ""),
}
NBMAKE: Expected = {
    "empty": ("passed", ""),
    "ignore_tag": ("passed", ""),
    "import_errs": ("error", "ZeroDivisionError"),
    "magic_error": ("error", "No module named 'matplotlib'"),
    # Mocks, and code after a cell, are nbmake's own inventions.
    "mock": ("error", "cell 2: AssertionError"),
    "post_cell_execute": ("error", "cell 2: AssertionError"),
    "post_cell_execute_error": ("passed", ""),
    "post_cell_execute_masked_error": ("error", "Exception: bang!"),
    "raises_tag": ("passed", ""),
}
NBVAL: Expected = {
    # These show errors to their readers, and mark them by comments for nbval only.
    "index": ("error", "cell 35: RuntimeError: Foo"),
    "exceptions": ("error", "cell 1: RuntimeError: foo"),
    "test-exceptions-fail-storedmismatch": ("error", "cell 1: RuntimeError: Foo"),
    "test-latex-fail-randomoutput": ("error", "No module named 'sympy'"),
    "test-latex-pass-correctouput": ("error", "No module named 'sympy'"),
    "test-latex-pass-failsbutignoreoutput": ("error", "No module named 'sympy'"),
    # Outputs are compared where a cell asks for it.
    "test-stream-fail-missingoutput": ("passed", ""),
    "test-stream-pass-missing-unexecuted-output": ("passed", ""),
    "latex-example": ("error", "No module named 'sympy'"),
    "minimal_example": ("passed", ""),
    "sample_notebook": ("error", "No module named 'matplotlib'"),
    "test_coalesce": ("passed", ""),
}
EXPECTED = {"papermill": PAPERMILL, "nbclient": NBCLIENT, "nbmake": NBMAKE, "nbval": NBVAL}


def fetch(package: str, folder: Path) -> list[Path]:
    """Return the notebooks of a package. It is kept with the environments of the tests."""
    archive = KEPT / PACKAGES[package]
    if not archive.exists():
        version = archive.name.split("-")[1].removesuffix(".tar.gz")
        kind = "--only-binary" if archive.suffix == ".whl" else "--no-binary"
        # Not that of the environment of the tests, which has no pip.
        python = getattr(sys, "_base_executable", sys.executable)
        subprocess.run(
            [
                *(python, "-m", "pip", "download", "--quiet", "--no-deps", f"{kind}={package}"),
                *(f"--dest={KEPT}", f"{package}=={version}"),
            ],
            check=True,
            timeout=200,
        )
    _unpack(archive, folder)
    return sorted(folder.rglob("*.ipynb"))


def _unpack(archive: Path, folder: Path) -> None:
    for name, content in _files(archive):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def _files(archive: Path) -> Iterator[tuple[str, bytes]]:
    if archive.suffix == ".whl":
        with zipfile.ZipFile(archive) as wheel:
            yield from ((name, wheel.read(name)) for name in wheel.namelist() if name[-1] != "/")
        return
    with tarfile.open(archive) as source:
        for member in source.getmembers():
            file = source.extractfile(member)
            if file is not None:
                yield member.name, file.read()
