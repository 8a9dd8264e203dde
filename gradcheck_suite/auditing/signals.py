"""Signals to a script under audit: those that end it leave a report, SIGUSR1 asks for one."""

from __future__ import annotations

import os
import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["reporting_signals"]

# Asked to end, the terminal has gone, and Ctrl-\. Those of a mistake (SIGSEGV) leave no time.
_ENDING = ("SIGTERM", "SIGHUP", "SIGQUIT")


@contextmanager
def reporting_signals(
    on_termination: Callable[[int], object], on_request: Callable[[], object]
) -> Iterator[None]:
    """Call ``on_termination`` before a signal ends this process, ``on_request`` at each SIGUSR1.

    A process that was given handlers of its own keeps them, or that was told to ignore a signal, as
    ``nohup`` does, and so does a script that asks for either. Children of a script, such as the
    workers of a DataLoader, end as they do without an audit. Does nothing outside of the main
    thread, where no handler can be installed.
    """
    process = os.getpid()
    ending_by: list[int] = []

    def terminate(number: int, _frame: Any) -> None:
        if ending_by and number not in ending_by:
            # One that is sent along with another does not cut the report short.
            return
        ending_by.append(number)
        try:
            if os.getpid() == process and len(ending_by) == 1:
                on_termination(number)
        finally:
            # The process ends by the signal, as whoever waits for it expects.
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def answer(_number: int, _frame: Any) -> None:
        if os.getpid() == process:
            on_request()

    installed: dict[int, Callable[[int, Any], None]] = {}
    if threading.current_thread() is threading.main_thread():
        handlers: dict[str, Callable[[int, Any], None]] = dict.fromkeys(_ENDING, terminate)
        handlers["SIGUSR1"] = answer
        for name, handler in handlers.items():
            number = getattr(signal, name, None)
            if number is not None and signal.getsignal(number) is signal.SIG_DFL:
                signal.signal(number, handler)
                installed[number] = handler
    try:
        yield
    finally:
        for number, ours in installed.items():
            if signal.getsignal(number) is ours:
                signal.signal(number, signal.SIG_DFL)
