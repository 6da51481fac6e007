"""`build-images` in processes forked from one that has its modules already.

Python and the program's modules take half a second of a processor to start, and tests start the
program hundreds of times. What a fork shares with a program that was started is all that the
program has done when it reads its command line: nothing but imports.
"""

from __future__ import annotations

import array
import atexit
import contextlib
import functools
import gc
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

PROJECT = Path(__file__).resolve().parents[2]
_PROGRAM = PROJECT / "builder/__main__.py"  # sys.argv[0] of `python -m builder`
_READ_AT_START = ("PYTHON", "LC_", "LANG", "TZ", "LD_", "OPENSSL")

# In the tests' process


def _at_start(env: Mapping[str, str]) -> dict[str, str]:
    return {name: text for name, text in env.items() if name.startswith(_READ_AT_START)}


_OF_SERVER = _at_start(os.environ)


def is_the_same(env: Mapping[str, str]) -> bool:
    """Whether a program that is started with these variables does nothing else than a fork."""
    return _at_start(env) == _OF_SERVER


def run_forked(
    words: Sequence[str], env: Mapping[str, str], timeout_s: float
) -> tuple[int, str, str]:
    """Run `build-images` in the project's folder; its status, standard output and error."""
    asked = {"argv": [str(_PROGRAM), *words], "env": dict(env)}
    with (
        tempfile.TemporaryFile() as request,
        tempfile.TemporaryFile() as out,
        tempfile.TemporaryFile() as err,
        socket.socket(socket.AF_UNIX) as connection,
    ):
        request.write(json.dumps(asked).encode())
        request.flush()
        connection.connect(_address())
        files = array.array("i", [one.fileno() for one in (request, out, err)])
        connection.sendmsg([b"."], [(socket.SOL_SOCKET, socket.SCM_RIGHTS, files)])
        status = _status(connection, timeout_s)
        return status, _text(out), _text(err)


def _status(connection: socket.socket, timeout_s: float) -> int:
    with connection.makefile() as answers:
        child = int(answers.readline())
        try:
            connection.settimeout(timeout_s)
            return int(answers.readline())
        except BaseException:
            with contextlib.suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
            raise


def _text(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode(errors="replace").replace("\r\n", "\n").replace("\r", "\n")


@functools.cache
def _address() -> bytes:
    """The address of a server, which ends with this process."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(address := b"\0build-images-" + os.urandom(8).hex().encode())
        listening.listen(64)
        number = listening.fileno()
        server = subprocess.Popen(
            [sys.executable, __file__, str(number)],
            cwd=PROJECT,
            stdin=subprocess.PIPE,  # whose end says that this process has ended
            stdout=subprocess.DEVNULL,
            pass_fds=[number],
        )
    atexit.register(server.communicate)  # what it took of a processor counts for this process
    return address


# In the server


def served(
    listening: socket.socket, prepare: Callable[[Sequence[str]], None]
) -> dict[str, Any] | None:
    """Fork for each request: in a fork, what is asked of it; None where there is no one to ask."""
    running: dict[int, tuple[int, socket.socket]] = {}
    with selectors.DefaultSelector() as waiting:
        waiting.register(listening, selectors.EVENT_READ)
        waiting.register(0, selectors.EVENT_READ)
        while True:
            for key, _ in waiting.select():
                if key.fd == 0:
                    return None
                if key.fd in running:
                    waiting.unregister(key.fd)
                    _answer(key.fd, *running.pop(key.fd))
                    continue
                connection, _ = listening.accept()
                _, files, _, _ = socket.recv_fds(connection, 1, 3)
                with os.fdopen(files[0], "rb") as request:
                    request.seek(0)
                    asked: dict[str, Any] = json.load(request)
                prepare(asked["argv"])
                child = os.fork()
                if child == 0:
                    _take(files[1:])
                    return asked
                for one in files[1:]:
                    os.close(one)
                connection.sendall(b"%d\n" % child)
                handle = os.pidfd_open(child)
                running[handle] = (child, connection)
                waiting.register(handle, selectors.EVENT_READ)


def _answer(handle: int, child: int, connection: socket.socket) -> None:
    _, status = os.waitpid(child, 0)
    os.close(handle)
    with connection, contextlib.suppress(OSError):  # whoever asked has gone
        connection.sendall(b"%d\n" % os.waitstatus_to_exitcode(status))


def _take(files: Sequence[int]) -> None:
    """Have whoever asks read standard output and error; there is no input."""
    nothing = os.open(os.devnull, os.O_RDONLY)
    for number, file in enumerate((nothing, *files)):
        os.dup2(file, number)
        os.close(file)


def _begin(asked: Mapping[str, Any]) -> None:
    """Have what a program that is started has."""
    os.closerange(3, 256)  # the server's
    os.chdir(PROJECT)
    os.environ.clear()
    os.environ.update(asked["env"])
    sys.argv[:] = asked["argv"]
    tempfile.tempdir = None


def main() -> int:
    """Serve; in a fork, the status of the command."""
    sys.path[0] = str(PROJECT)
    from builder.cli import main as build_images  # noqa: PLC0415 - in the server alone
    from builder.cli.commands import ABOUT, DEFAULT, command_of  # noqa: PLC0415

    known = set[str]()

    def prepare(argv: Sequence[str]) -> None:
        """Import the modules of a command, which every fork for it has then."""
        name = next((word for word in argv if word in ABOUT), DEFAULT)
        if name not in known:
            known.add(name)
            command_of(name)
            gc.collect()
            gc.freeze()

    listening = socket.socket(fileno=int(sys.argv[1]))
    asked = served(listening, prepare)
    listening.detach()
    if asked is None:
        return 0
    _begin(asked)
    return build_images()


if __name__ == "__main__":
    sys.exit(main())
