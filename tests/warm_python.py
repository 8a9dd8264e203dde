"""Runs of Python that begin where torch is loaded already.

``import torch`` and the first step of an optimizer, which loads ``torch._dynamo``, take seconds,
and hundreds of tests run a command or a program. One process per worker of the suite loads both
once and forks for each run, which then is a process as any other: with arguments, folder,
environment and streams of its own, until it comes to its end. Nothing of gradcheck_suite is loaded
beforehand, so that what is imported when, and what that says, stays as it is for users.

Not for tests of what loads torch, of terminals and process groups, or of variables that Python
reads at its start.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import json
import os
import re
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import types
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from importlib import import_module
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_ROOT = Path(__file__).parents[1]
_STREAMS = 4
_LEAKS = re.compile(r"nanobind: leaked[\s\S]*?refleaks\.html\n?")
"""What the bindings of triton, which torch 2.15 loads, say as a forked process ends: that objects
are left which the process before it had made."""
_LOADED = ("torch._dynamo", "rich.console", "rich.progress", "libcst")


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

    ``words`` are ``-c CODE``, ``-m MODULE`` or a file, which ``-P`` may stand before, and
    arguments. Standard input is empty.
    """
    with ExitStack() as opened:
        files = [
            opened.enter_context(tempfile.TemporaryFile("w+"))
            if wanted == subprocess.PIPE
            else wanted
            for wanted in (stdout, stderr)
        ]
        process = start(words, cwd=cwd, env=env, stdout=files[0], stderr=files[1])
        try:
            status: int | None = process.wait(timeout)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            status = None
        said = [
            _all_of(file) if wanted == subprocess.PIPE else None
            for wanted, file in ((stdout, files[0]), (stderr, files[1]))
        ]
    if status is None:
        raise subprocess.TimeoutExpired(process.args, timeout, *said)
    return subprocess.CompletedProcess(process.args, status, *said)


def start(
    words: Sequence[object],
    *,
    cwd: str | os.PathLike[str] | None = None,
    env: Mapping[str, str] | None = None,
    stdout: IO[Any] | int = subprocess.PIPE,
    stderr: IO[Any] | int = subprocess.PIPE,
) -> Process:
    """Do what ``subprocess.Popen([sys.executable, *words], text=True, ...)`` does."""
    command = [str(word) for word in words]
    folder = str(Path(cwd or ".").resolve())
    request = {"words": command, "cwd": folder, "env": dict(os.environ if env is None else env)}
    ours: list[IO[str] | None] = [None, None]
    theirs: list[int] = []
    for place, wanted in enumerate((stdout, stderr)):
        if wanted == subprocess.PIPE:
            reading, writing = os.pipe()
            ours[place] = os.fdopen(reading)
            theirs.append(writing)
        elif wanted == subprocess.STDOUT:
            theirs.append(os.dup(theirs[0]))
        elif wanted == subprocess.DEVNULL:
            theirs.append(os.open(os.devnull, os.O_WRONLY))
        else:
            theirs.append(os.dup(wanted if isinstance(wanted, int) else wanted.fileno()))
    nothing = os.open(os.devnull, os.O_RDONLY)
    channel, answers = socket.socketpair()
    with answers:
        _server().ask(request, [nothing, *theirs, answers.fileno()])
    for each in (nothing, *theirs):
        os.close(each)
    return Process([sys.executable, *command], channel, *ours)


def _all_of(file: IO[str]) -> str:
    file.seek(0)
    return _LEAKS.sub("", file.read())


class Process:
    """A run of Python, seen from the test that started it."""

    def __init__(
        self,
        args: list[str],
        channel: socket.socket,
        stdout: IO[str] | None,
        stderr: IO[str] | None,
    ) -> None:
        self.args, self.stdout, self.stderr, self.stdin = args, stdout, stderr, None
        self.returncode: int | None = None
        self._channel = channel
        self.pid = self._answer()

    def _answer(self) -> int:
        return int.from_bytes(_received(self._channel, 8), "big", signed=True)

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status, negative for a signal."""
        if self.returncode is None:
            self._channel.settimeout(timeout)
            try:
                self.returncode = self._answer()
            except TimeoutError:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0) from None
            self._channel.close()
        return self.returncode

    def poll(self) -> int | None:
        """Return the exit status, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.wait(0.001)
        return None

    def send_signal(self, number: int) -> None:
        """Send a signal to a process that runs."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        """Ask it to end."""
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it at once."""
        self.send_signal(signal.SIGKILL)

    def communicate(self, timeout: float | None = None) -> tuple[str | None, str | None]:
        """Return what it writes from now on, once it has ended."""
        with ThreadPoolExecutor() as readers:
            said = [
                readers.submit(file.read) if file is not None and not file.closed else None
                for file in (self.stdout, self.stderr)
            ]
            try:
                self.wait(timeout)
            except subprocess.TimeoutExpired:
                self.kill()
                raise
            out, err = (
                _LEAKS.sub("", each.result()) if each is not None else None for each in said
            )
        self._close()
        return out, err

    def _close(self) -> None:
        for file in (self.stdout, self.stderr):
            if file is not None:
                file.close()

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *exception: object) -> None:
        self._close()
        self.wait()


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

    def ask(self, request: dict[str, Any], streams: list[int]) -> None:
        """Have a process started that answers with its number and its status in the last stream."""
        data = json.dumps(request).encode()
        socket.send_fds(self._channel, [len(data).to_bytes(8, "big")], streams)
        self._channel.sendall(data)


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
    for name in _LOADED:
        import_module(name)
    gc.collect()
    gc.freeze()
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for those that wait
    while True:
        head, streams, _, _ = socket.recv_fds(channel, 8, _STREAMS)
        if not head:
            return
        request = json.loads(_received(channel, int.from_bytes(head, "big")))
        if not os.fork():
            channel.close()
            _start_and_wait(request, streams)
        for stream in streams:
            os.close(stream)


def _start_and_wait(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Start a process, tell its number, wait for it, and tell its status."""
    *streams, answers = streams
    # Whoever started the tests may have had some ignored, as a shell has in the background.
    for name in ("SIGCHLD", "SIGHUP", "SIGPIPE", "SIGQUIT", "SIGTERM"):
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    process = os.fork()
    if not process:
        os.close(answers)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        _become(request, streams)
    for stream in streams:
        os.close(stream)
    with socket.socket(fileno=answers) as channel:
        channel.sendall(process.to_bytes(8, "big", signed=True))
        _, status = os.waitpid(process, 0)
        channel.sendall(os.waitstatus_to_exitcode(status).to_bytes(8, "big", signed=True))
    os._exit(0)


def _become(request: dict[str, Any], streams: list[int]) -> NoReturn:
    """Go on as ``python WORDS`` does once it has started."""
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
    for stream in streams:
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
            if kind == "-P":
                kind, *words = words
            main = sys.modules["__main__"] = types.ModuleType("__main__")
            if kind == "-c":
                source, name, sys.path[0] = words[0], "<string>", ""
                sys.argv[:] = ["-c", *words[1:]]
            else:
                source, name = Path(kind).read_text(encoding="utf-8"), kind
                sys.path[0] = str(Path(kind).resolve().parent)
                if request["words"][0] == "-P":
                    del sys.path[0]
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
