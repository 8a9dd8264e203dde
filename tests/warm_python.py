"""Runs of Python that begin where torch is loaded already.

``import torch`` and the first step of an optimizer, which loads ``torch._dynamo``, take seconds,
and hundreds of tests run a command or a program. One process per worker of the suite loads both
once and forks for each run, which then is a process as any other: with arguments, folder,
environment and streams of its own, until it comes to its end. Nothing of gradcheck_suite is loaded
beforehand, so that what is imported when, and what that says, stays as it is for users.

Not for tests of what loads torch, of signals, or of variables that Python reads at its start.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import types
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ROOT = Path(__file__).parents[1]
_STREAMS = 3


def run(
    words: Sequence[object],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdout: IO[Any] | int = subprocess.PIPE,
    stderr: IO[Any] | int = subprocess.PIPE,
    timeout: float = 300,
) -> subprocess.CompletedProcess[str]:
    """Do what ``subprocess.run([sys.executable, *words], text=True, ...)`` does.

    ``words`` are ``-c CODE``, ``-m MODULE`` or a file, and arguments. Standard input is empty.
    """
    command = [str(word) for word in words]
    folder = str(Path(cwd or ".").resolve())
    request = {"words": command, "cwd": folder, "env": dict(os.environ if env is None else env)}
    with ExitStack() as opened:
        nothing = opened.enter_context(Path(os.devnull).open())
        out, err = (
            opened.enter_context(tempfile.TemporaryFile("w+")) if wanted == subprocess.PIPE
            else opened.enter_context(Path(os.devnull).open("w")) if wanted == subprocess.DEVNULL
            else wanted
            for wanted in (stdout, stderr)
        )  # fmt: skip
        if stderr == subprocess.STDOUT:
            err = out
        streams = [each if isinstance(each, int) else each.fileno() for each in (nothing, out, err)]
        status = _server().run(request, streams, timeout)
        said = [
            _all_of(stream) if wanted == subprocess.PIPE else None
            for wanted, stream in ((stdout, out), (stderr, err))
        ]
    if status is None:
        raise subprocess.TimeoutExpired(command, timeout, *said)
    return subprocess.CompletedProcess([sys.executable, *command], status, *said)


def _all_of(file: IO[str]) -> str:
    file.seek(0)
    return file.read()


class _Server:
    """The process that forks, seen from the tests."""

    def __init__(self) -> None:
        self._channel, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm_python", str(theirs.fileno())],
                cwd=_ROOT,
                pass_fds=[theirs.fileno()],
                stdin=subprocess.DEVNULL,
            )
        atexit.register(self._end)

    def _end(self) -> None:
        self._channel.close()
        self.process.wait()

    def run(self, request: dict[str, Any], streams: list[int], timeout: float) -> int | None:
        """Return the exit status, negative for a signal; None where it took too long."""
        data = json.dumps(request).encode()
        socket.send_fds(self._channel, [len(data).to_bytes(8, "big")], streams)
        self._channel.sendall(data)
        process = self._answer()
        self._channel.settimeout(timeout)
        try:
            return self._answer()
        except TimeoutError:
            os.kill(process, signal.SIGKILL)
            self._channel.settimeout(None)
            self._answer()
            return None
        finally:
            self._channel.settimeout(None)

    def _answer(self) -> int:
        return int.from_bytes(_received(self._channel, 8), "big", signed=True)


@functools.cache
def _server() -> _Server:
    return _Server()


def _received(channel: socket.socket, size: int) -> bytes:
    data = b""
    while len(data) < size:
        piece = channel.recv(size - len(data))
        if not piece:
            message = "the process that forks has ended; what it says stands above"
            raise RuntimeError(message)
        data += piece
    return data


def _serve(channel: socket.socket) -> None:
    import_module("torch._dynamo")
    gc.collect()
    gc.freeze()
    while True:
        head, streams, _, _ = socket.recv_fds(channel, 8, _STREAMS)
        if not head:
            return
        request = json.loads(_received(channel, int.from_bytes(head, "big")))
        process = os.fork()
        if not process:
            channel.close()
            _become(request, streams)
        for stream in streams:
            os.close(stream)
        channel.sendall(process.to_bytes(8, "big", signed=True))
        _, status = os.waitpid(process, 0)
        channel.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))


def _become(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Go on as ``python WORDS`` does once it has started."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.chdir(request["cwd"])
    os.environ.clear()
    os.environ.update(request["env"])
    kind, *words = request["words"]
    try:
        if kind == "-m":
            sys.argv[:], sys.path[0] = words, request["cwd"]
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            if kind == "-c":
                source, name, sys.path[0] = words[0], "<string>", ""
                sys.argv[:] = ["-c", *words[1:]]
            else:
                source, name = Path(kind).read_text(encoding="utf-8"), kind
                sys.path[0] = str(Path(kind).resolve().parent)
                sys.argv[:], main.__file__ = [kind, *words], kind
            exec(compile(source, name, "exec"), main.__dict__)
    except Exception as error:  # noqa: BLE001 - what Python does
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename in (__file__, runpy.__file__):
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
        sys.exit(1)
    sys.exit(0)


if __name__ == "__main__":
    _serve(socket.socket(fileno=int(sys.argv[1])))
