"""Share the work among processes, and outlive those that die of it.

A worker is a fresh interpreter that takes one task at a time from its standard input, so a file
that kills it (libcst's parser is native code) is known, and only that file is not linted.
"""

from __future__ import annotations

import contextlib
import gc
import os
import pickle
import queue
import signal
import struct
import subprocess
import sys
import threading
from typing import IO, TYPE_CHECKING, Final

from gradcheck_lint.failures import WHOLE_FILE, failed
from gradcheck_lint.tasks import Outcome, Task, perform

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

_LENGTH: Final = struct.Struct("<Q")
_BYTES_BEFORE_RENEWAL: Final = 200 << 20
"""A worker whose memory has grown to this much is replaced, for Python gives little back."""
_TASKS_BEFORE_FREEZING: Final = 20
"""By then nearly everything has been imported, and there is enough to do for it to pay."""
_BYTES_PER_WORKER: Final = 400_000
"""Source that takes long enough (about a second) to be worth the start of a process."""


def available_cpus() -> int:
    """Return how many processors this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0)) or 1
    return os.cpu_count() or 1


def worker_count(jobs: int | None, size: int, files: int) -> int:
    """Return how many workers some work is worth; 1 stands for none beside this process.

    Args:
        jobs: what was asked for, None for as many as there are processors.
        size: bytes of source.
        files: how many files they are in.
    """
    if jobs is not None:
        return max(1, min(jobs, files))
    return max(1, min(available_cpus(), files, size // _BYTES_PER_WORKER))


class Workers:
    """Processes that can be started before all their tasks are known.

    To start takes each as long as to lint a thousand lines or more. ``count`` is how many there
    are, where 1 stands for this process alone.
    """

    def __init__(self) -> None:
        self.count = 1
        self._ready: list[_Worker] = []

    def prepare(self, count: int) -> None:
        """Start processes until there are so many."""
        self.count = max(self.count, count)
        while 1 < self.count > len(self._ready):
            worker = _Worker()
            self._ready.append(worker)
            worker.start()

    def stop(self) -> None:
        """End all processes, whatever they do."""
        for worker in self._ready:
            worker.kill()

    def perform(self, tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
        """Do all tasks and yield each with its outcome, with several workers as they come."""
        if self.count == 1:
            yield from _perform_here(tasks)
            return
        pool = _Pool(tasks, self._ready)
        try:
            yield from pool.outcomes()
        finally:
            pool.stop()


def perform_all(tasks: Iterable[Task], *, workers: int) -> Iterator[tuple[Task, Outcome]]:
    """Do all tasks with so many processes, and yield each with its outcome."""
    started = Workers()
    try:
        started.prepare(workers)
        yield from started.perform(tasks)
    finally:
        started.stop()


def _perform_here(tasks: Iterable[Task]) -> Iterator[tuple[Task, Outcome]]:
    """Do all tasks in this process, and spare the collector what is here to stay meanwhile.

    libcst and the rules are hundreds of thousands of objects, which each full collection looks at.
    """
    try:
        for done, task in enumerate(tasks, start=1):
            yield task, perform(task)
            if done == _TASKS_BEFORE_FREEZING:
                gc.collect()
                gc.freeze()
    finally:
        gc.unfreeze()


class _Pool:
    """Threads that each feed one process."""

    def __init__(self, tasks: Iterable[Task], workers: Sequence[_Worker]) -> None:
        self._tasks = iter(tasks)
        self._lock = threading.Lock()
        self._stopping = False
        self._done: queue.SimpleQueue[tuple[Task, Outcome] | BaseException | None]
        self._done = queue.SimpleQueue()
        self._workers = workers
        self._threads = [
            threading.Thread(target=self._feed, args=(worker,), daemon=True)
            for worker in self._workers
        ]

    def outcomes(self) -> Iterator[tuple[Task, Outcome]]:
        for thread in self._threads:
            thread.start()
        running = len(self._threads)
        while running:
            item = self._done.get()
            if item is None:
                running -= 1
            elif isinstance(item, BaseException):
                raise item
            else:
                yield item

    def stop(self) -> None:
        self._stopping = True
        for worker in self._workers:
            worker.kill()
        for thread in self._threads:
            if thread.is_alive():
                thread.join(timeout=5)

    def _feed(self, worker: _Worker) -> None:
        try:
            while not self._stopping:
                with self._lock:
                    task = next(self._tasks, None)
                if task is None:
                    break
                outcome = worker.perform(task)
                self._done.put((task, outcome))
        except BaseException as error:  # noqa: BLE001 - raised again where the work was asked for
            self._done.put(error)
        finally:
            worker.kill()
            self._done.put(None)


class _Worker:
    """One process, started when it is first needed and again when it has died or grown."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Let the process come up before there is anything to do."""
        self._started()

    def perform(self, task: Task) -> Outcome:
        process = self._started()
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            _send(process.stdin, task)
            outcome, memory = _receive(process.stdout)
        except (EOFError, OSError, pickle.UnpicklingError):
            end = f"the process that read it {self._end()}"
            return Outcome((failed(task.path, end, WHOLE_FILE),))
        assert isinstance(memory, int)
        if memory > _BYTES_BEFORE_RENEWAL:
            self.kill()
        assert isinstance(outcome, Outcome)
        return outcome

    def kill(self) -> None:
        process = self._process
        if process is None:
            return
        self._process = None
        with contextlib.suppress(OSError):
            process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            # The search path is handed over before anything is imported: the directory that is
            # linted must not get to say what `import json` means.
            code = (
                f"import sys; sys.path[:] = {sys.path!r}; "
                "from gradcheck_lint.workers import serve; serve()"
            )
            self._process = subprocess.Popen(
                [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
            )
        return self._process

    def _end(self) -> str:
        """Say how the process ended."""
        process = self._process
        if process is None:
            return "was stopped"
        try:
            status = process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            status = 0
        self.kill()
        if status < 0:
            with contextlib.suppress(ValueError):
                return f"was killed by {signal.Signals(-status).name}"
        return f"ended with status {status}"


def serve() -> None:
    """Do the tasks that come on standard input until it closes; the body of a worker."""
    with contextlib.suppress(ValueError, OSError):
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent to handle
    stdin = sys.stdin.buffer
    # What a library prints must not get between the outcomes.
    stdout = os.fdopen(os.dup(sys.stdout.fileno()), "wb")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    import gradcheck_lint.inspection  # noqa: PLC0415 - brings libcst along
    import gradcheck_lint.model.module  # noqa: F401, PLC0415 - as above

    gc.collect()
    gc.freeze()
    while True:
        try:
            (task,) = _receive(stdin)
        except EOFError:
            return
        assert isinstance(task, Task)
        _send(stdout, perform(task), _peak_memory())


def _send(stream: IO[bytes], *items: object) -> None:
    data = pickle.dumps(items, protocol=pickle.HIGHEST_PROTOCOL)
    stream.write(_LENGTH.pack(len(data)) + data)
    stream.flush()


def _receive(stream: IO[bytes]) -> tuple[object, ...]:
    head = stream.read(_LENGTH.size)
    if len(head) < _LENGTH.size:
        raise EOFError
    (length,) = _LENGTH.unpack(head)
    data = stream.read(length)
    if len(data) < length:
        raise EOFError
    items: tuple[object, ...] = pickle.loads(data)
    return items


def _peak_memory() -> int:
    """Return the most memory that this process has had, in bytes; 0 where that can't be told."""
    try:
        import resource  # noqa: PLC0415 - not on Windows
    except ImportError:
        return 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
