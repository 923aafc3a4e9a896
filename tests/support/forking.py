"""Fast starts of Python programs: forked from a process that has imported their modules.

A start of ``openstack``, ``tenure`` or ``tenure-standalone`` takes more than a second of processor time, nearly all of
it for imports. A forked program otherwise equals the installed one: its entry point runs in its own process, with its
own arguments, environment and streams, and can be signalled.
"""

from __future__ import annotations

import importlib
import io
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.metadata import entry_points
from multiprocessing.connection import Connection
from pathlib import Path

from cliff.app import App

from tests.support.waiting import patience

#: The modules imported before the first program starts. None of them may read the environment or the command line when
#: it is imported, as the shells do.
PRELOADED = (
    "blazarclient.osc.plugin",
    "openstack.connection",
    "openstackclient.compute.client",
    "openstackclient.identity.client",
    "openstackclient.image.client",
    "openstackclient.network.client",
    "openstackclient.volume.client",
    "osc_lib.shell",
    "tenureclient.client",
    "tenure.cmd.standalone",
    "tenure.cmd.manage",
    "tests.scenarios.dying_standalone",
    "tests.scenarios.enforced_standalone",
    "tests.support.shells",
)

#: The programs that find much out anew at each start; `tests.support.shells` knows it already.
_SHELLS = frozenset({"openstack", "tenure"})

_CONTEXT = multiprocessing.get_context("forkserver")
_CONTEXT.set_forkserver_preload(list(PRELOADED))


class Forked:
    """A program that was started; what there is of ``subprocess.Popen`` is like there.

    :param program: the name of a console script, or ``module:function``
    :param stdout: a file; None for a pipe, whose other end is ``self.stdout``
    """

    def __init__(
        self,
        program: str,
        arguments: Sequence[str],
        *,
        env: Mapping[str, str],
        stderr: Path,
        stdout: Path | None = None,
        cwd: Path | None = None,
    ) -> None:
        self.args = [program, *arguments]
        self.stdout: io.TextIOWrapper | None = None
        reader = writer = None
        if stdout is None:
            reader, writer = multiprocessing.Pipe(duplex=False)
            self.stdout = os.fdopen(os.dup(reader.fileno()), "r")
            reader.close()
        self._process = _CONTEXT.Process(
            target=_become,
            args=(program, list(arguments), dict(env), str(cwd or Path.cwd()), writer or str(stdout), str(stderr)),
            daemon=True,  # ends with the tests, whatever a test leaves running
        )
        self._process.start()
        if writer is not None:
            writer.close()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self._process.exitcode

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout: float | None = None) -> int:
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired(self.args, timeout or 0)
        return self._process.exitcode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def run_forked(
    program: str, *arguments: str, env: Mapping[str, str], cwd: Path | None = None
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, as ``subprocess.run(..., capture_output=True, text=True)`` does."""
    with tempfile.TemporaryDirectory(prefix="tenure-output-") as folder:
        stdout, stderr = Path(folder, "stdout"), Path(folder, "stderr")
        process = Forked(program, arguments, env=env, stdout=stdout, stderr=stderr, cwd=cwd)
        try:
            code = process.wait(patience())
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            raise
        return subprocess.CompletedProcess(process.args, code, stdout.read_text(), stderr.read_text())


def _become(
    program: str, arguments: list[str], environ: dict[str, str], cwd: str, stdout: Connection | str, stderr: str
) -> None:
    """Run the program in the process that was forked for it."""
    with open(os.devnull) as nothing, open(stderr, "a") as errors:
        os.dup2(nothing.fileno(), 0)
        os.dup2(errors.fileno(), 2)
        if isinstance(stdout, str):
            with open(stdout, "a") as output:
                os.dup2(output.fileno(), 1)
        else:
            os.dup2(stdout.fileno(), 1)
            stdout.close()
    os.environ.clear()
    os.environ.update(environ)
    time.tzset()
    os.chdir(cwd)
    sys.argv = [str(Path(sys.executable).parent / program), *arguments]
    App.NAME = program  # cliff reads it from the command line when it is imported
    if program in _SHELLS:
        importlib.import_module("tests.support.shells").choose_again()
    if ":" in program:
        module, _, name = program.partition(":")
        __import__(module)
        main = getattr(sys.modules[module], name)
    else:
        (script,) = entry_points(group="console_scripts", name=program)
        main = script.load()
    sys.exit(main())
