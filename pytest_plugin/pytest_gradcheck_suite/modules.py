"""Tests that come from the examples of a package: one for each, verified by check_gradients."""

from __future__ import annotations

import inspect
import traceback
from typing import TYPE_CHECKING, Any

import pytest

from gradcheck_suite._runtime.frames import Owner, owner_of_file
from gradcheck_suite.errors import UsageError
from gradcheck_suite.examples import Example, registered_examples
from pytest_gradcheck_suite.marks import fail_on as severity_of
from pytest_gradcheck_suite.outcomes import fail_on_findings
from pytest_gradcheck_suite.packages import import_all, without_example
from pytest_gradcheck_suite.runtime import runtime, seed_for
from pytest_gradcheck_suite.selection import PREFIX, are_left_out, selected
from pytest_gradcheck_suite.settings import settings_of

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    from _pytest._code import Traceback

__all__ = ["ExampleItem", "collect_examples", "remarks_on"]

_REMARKS = pytest.StashKey["list[str]"]()


def collect_examples(session: pytest.Session, packages: tuple[str, ...]) -> list[pytest.Item]:
    """Return a test for each example of these packages that the run is about.

    Raises:
        pytest.UsageError: a package can't be imported, the hook returns no examples, or an id
            was given that none has.
    """
    if are_left_out(session.config):
        return []
    remarks = session.config.stash.setdefault(_REMARKS, [])
    items: list[pytest.Item] = []
    for package in packages:
        unseen = import_all(package, settings_of(session.config).subject("modules"))
        examples = (*registered_examples(package), *_from_hooks(session.config, package))
        collector = _PackageExamples.from_parent(
            session, name=package, nodeid=f"{PREFIX}{package}", examples=examples
        )
        found = list(session.genitems(collector))
        items += found
        remarks.extend(f"{package}: {what}" for what in unseen)
        without = without_example(package, {id(item.example.target) for item in found})  # type: ignore[attr-defined]  # all are ExampleItem
        if without:
            remarks.append(
                f"{package}: {len(without)} without an example, and not checked: "
                + ", ".join(without)
            )
    return list(selected(session.config, items))


def remarks_on(config: pytest.Config) -> list[str]:
    """Return what could not be checked in whole packages, a sentence each."""
    return config.stash.get(_REMARKS, [])


class _PackageExamples(pytest.Collector):
    """The examples of one package."""

    def __init__(self, *, examples: tuple[Example, ...], **arguments: Any) -> None:
        super().__init__(**arguments)
        self._examples = examples

    def collect(self) -> Iterator[pytest.Item]:
        used: dict[str, int] = {}
        for known in self._examples:
            module = getattr(known.target, "__module__", "")
            base = getattr(known.target, "__qualname__", type(known.target).__qualname__)
            inside = str(module).removeprefix(self.name).lstrip(".")
            name = ".".join(filter(None, (inside, base)))
            if known.name is not None:
                name = f"{name}[{known.name}]"
            used[name] = used.get(name, 0) + 1
            if used[name] > 1:
                name = f"{name}[{used[name]}]"
            yield ExampleItem.from_parent(self, name=name, example=known)


class ExampleItem(pytest.Item):
    """Checks the gradients of one example."""

    def __init__(self, *, example: Example, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.example = example
        path = self.reportinfo()[0]
        if path:
            from pathlib import Path  # noqa: PLC0415 - loaded by pytest

            self.path = Path(path)

    def runtest(self) -> None:
        """Make the module and its inputs under the test's seed, and check every gradient."""
        __tracebackhide__ = True
        suite = runtime()
        import torch  # noqa: PLC0415 - the modules come from it

        seed = seed_for(self)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            subject = self._subject()
            inputs = self._inputs()
        report = suite.check_gradients(subject, inputs, **{"seed": seed, **self.example.options})
        fail_on_findings(
            self, report, fail_on=severity_of(self), allow=frozenset(), with_traceback=False
        )

    def _inputs(self) -> Any:
        make_inputs = self.example.make_inputs
        refused = _refusal_of_no_arguments(make_inputs)
        if refused is not None:
            raise UsageError(
                f"the example of {self.name} can't make its inputs: they come from a function "
                f"without arguments ({refused}); write @example(lambda: torch.randn(2, 3))"
            )
        return make_inputs()

    def _subject(self) -> Any:
        import torch  # noqa: PLC0415 - as above

        target = self.example.target
        if self.example.make is not None:
            return self.example.make()
        if not (isinstance(target, type) and issubclass(target, torch.nn.Module)):
            return target
        if inspect.isabstract(target):
            raise UsageError(
                f"{target.__qualname__} is abstract, and can't be made; give the example to a "
                f"class that implements it, or say what to make: @example(make_inputs, make=...)"
            )
        refused = _refusal_of_no_arguments(target)
        if refused is not None:
            raise UsageError(
                f"{target.__qualname__} can't be made without arguments ({refused}); say how in "
                f"its example: @example(make_inputs, make=lambda: {target.__qualname__}(...))"
            )
        return target()

    def reportinfo(self) -> tuple[os.PathLike[str] | str, int | None, str]:
        """Return where the module or Function is defined."""
        target = inspect.unwrap(self.example.target)
        if not isinstance(target, type) and not inspect.isroutine(target):
            target = type(target)
        try:
            return inspect.getfile(target), inspect.getsourcelines(target)[1] - 1, self.name
        except (OSError, TypeError):
            return "", None, self.name

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Show wrong use as its message alone."""
        if isinstance(excinfo.value, UsageError):
            return f"UsageError: {excinfo.value}"
        ours = isinstance(excinfo.value, pytest.fail.Exception)
        if not ours and not self.config.getoption("fulltrace", False):
            theirs = _without_machinery(
                excinfo.traceback, self.config.pluginmanager.get_plugin("runner")
            )
            if not theirs:  # raised by a function of C, such as that of a class
                return "".join(traceback.format_exception_only(excinfo.value)).rstrip()
            excinfo.traceback = theirs
        if self.config.getoption("tbstyle", "auto") == "auto":
            style = "short"  # what raises is mostly inside torch, in long functions
        return super().repr_failure(excinfo, style)


def _refusal_of_no_arguments(function: Callable[..., Any]) -> TypeError | None:
    """Return why a call without arguments fails before it begins, as far as that can be told."""
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        return error
    except ValueError:  # nobody knows the arguments of some functions of C
        pass
    return None


def _without_machinery(whole: Traceback, runner: Any) -> Traceback:
    """Return what comes after pytest's call of a test, save for our own part in it."""
    codes = [entry.frame.code.raw for entry in whole]
    called_by = runner.pytest_runtest_call.__code__
    inside = whole[codes.index(called_by) + 1 :] if called_by in codes else whole
    theirs = [e for e in inside if owner_of_file(e.frame.code.raw.co_filename) is not Owner.US]
    return type(whole)(theirs)


def _from_hooks(config: pytest.Config, package: str) -> Iterator[Example]:
    for given in config.hook.pytest_gradcheck_suite_examples(config=config, package=package):
        try:
            if isinstance(given, dict):
                yield from (Example(target, make) for target, make in given.items())
                continue
            for known in given:
                if not isinstance(known, Example):
                    raise UsageError(  # noqa: TRY301 - one wording for all
                        f"expected gradcheck_suite.examples.Example, got {known!r}"
                    )
                yield known
        except (UsageError, TypeError) as error:
            raise pytest.UsageError(f"pytest_gradcheck_suite_examples: {error}") from None
