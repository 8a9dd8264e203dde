"""Tests that come from the examples of a package: one for each, verified by check_gradients.

The id of an example can be given as that of a test can: ``gradcheck-suite::mypackage::layers.Net``.
Where a configuration file asks for the examples of packages, a run that names files or tests is
about those alone.
"""

from __future__ import annotations

import importlib
import inspect
import os
import pkgutil
import sys
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from gradcheck_suite._runtime.frames import Owner, owner_of_file
from gradcheck_suite.errors import UsageError
from gradcheck_suite.examples import Example, registered_examples
from pytest_gradcheck_suite.markers import fail_on as fail_on_severity
from pytest_gradcheck_suite.options import seed_for, settings_of
from pytest_gradcheck_suite.results import fail_on_findings
from pytest_gradcheck_suite.runtime import runtime

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from types import ModuleType

    from _pytest._code import Traceback

    from pytest_gradcheck_suite.options import Settings

__all__ = [
    "ExampleItem",
    "collect_examples",
    "examples_are_left_out",
    "remarks_of",
    "take_example_ids",
]

_PREFIX = "gradcheck-suite::"
# Options travel to the workers of xdist's, as the arguments do.
_IDS = "gradcheck_suite_example_ids"
_ONLY = "gradcheck_suite_examples_only"
_REMARKS = pytest.StashKey["list[str]"]()


def collect_examples(session: pytest.Session, packages: tuple[str, ...]) -> list[pytest.Item]:
    """Return a test for each example of these packages that the run is about.

    Raises:
        pytest.UsageError: a package can't be imported, the hook returns no examples, or an id
            was given that none has.
    """
    if examples_are_left_out(session.config):
        return []
    remarks = session.config.stash.setdefault(_REMARKS, [])
    items: list[pytest.Item] = []
    for package in packages:
        not_imported = _import_all(package, settings_of(session.config).subject("modules"))
        examples = (*registered_examples(package), *_from_hooks(session.config, package))
        collector = _PackageExamples.from_parent(
            session, name=package, nodeid=f"{_PREFIX}{package}", examples=examples
        )
        found = list(session.genitems(collector))
        items += found
        remarks.extend(f"{package}: {what}" for what in not_imported)
        without = _without_example(package, {id(item.example.target) for item in found})  # type: ignore[attr-defined]  # all are ExampleItem
        if without:
            remarks.append(
                f"{package}: {len(without)} without an example, and not checked: "
                + ", ".join(without)
            )
    return list(_selected(session.config, items))


def remarks_of(config: pytest.Config) -> list[str]:
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
            self.path = Path(path)

    def runtest(self) -> None:
        """Make the module and its inputs under the test's seed, and check every gradient."""
        __tracebackhide__ = True
        suite = runtime()
        import torch  # noqa: PLC0415 - the modules come from it

        seed = seed_for(self)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            function = self._function()
            inputs = self._inputs()
        report = suite.check_gradients(function, inputs, **{"seed": seed, **self.example.options})
        fail_on_findings(
            self, report, fail_on=fail_on_severity(self), allow=frozenset(), with_traceback=False
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

    def _function(self) -> Any:
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
        if not isinstance(excinfo.value, pytest.fail.Exception) and not self.config.getoption(
            "fulltrace", False
        ):
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


_ENDS_THE_RUN = (KeyboardInterrupt, pytest.exit.Exception)


def _import_all(package: str, subject: str) -> list[str]:
    """Import a package and what is below it; return what could not be looked at, a clause each.

    A part that leaves grad mode changed as it is imported would decide the outcome of every test:
    it is put back.

    Args:
        package: its name.
        subject: how to speak of the setting that names it.

    Raises:
        pytest.UsageError: the package itself can't be imported.
    """
    import torch  # noqa: PLC0415 - for packages that are checked

    grad = torch.is_grad_enabled()
    try:
        root = importlib.import_module(package)
    except ImportError as error:
        raise pytest.UsageError(
            f"{subject}: cannot import {package!r}: {error}; install it, or add "
            "its folder to pytest's setting pythonpath"
        ) from error
    except _ENDS_THE_RUN:
        raise
    except BaseException as error:
        raise pytest.UsageError(f"{subject}: cannot import {package!r}: {_named(error)}") from error
    remarks = list(_import_below(root))
    if torch.is_grad_enabled() != grad:
        torch.set_grad_enabled(grad)
        state = "disabled" if grad else "enabled"
        remarks.append(f"its import left grad mode {state}; it was put back")
    return remarks


def _import_below(package: ModuleType) -> Iterator[str]:
    # pkgutil.walk_packages would import packages itself, and end with what ends one of them.
    known = set()
    for found in pkgutil.iter_modules(getattr(package, "__path__", ()), f"{package.__name__}."):
        known.add(found.name)
        if found.name.rpartition(".")[2] == "__main__":
            continue
        yield from _import_part(found.name)
    is_namespace = getattr(package, "__file__", None) is None
    for name in _bare_folders(package):
        if name in known:
            continue
        if is_namespace:
            yield from _import_part(name)
        else:  # may well be no part of the package: templates, data
            yield f"did not look into {name}, which has no __init__.py"


def _import_part(name: str) -> Iterator[str]:
    try:
        module = importlib.import_module(name)
    except _ENDS_THE_RUN:
        raise
    except BaseException as error:  # noqa: BLE001 - a script's sys.exit, pytest.skip
        yield f"could not import {name} ({_named(error)})"
    else:
        yield from _import_below(module)


def _bare_folders(package: ModuleType) -> list[str]:
    """Return the names of folders without an ``__init__.py`` that may be parts of a package.

    Of a package that has one itself, those with modules in them; of a namespace, all.
    """
    is_namespace = getattr(package, "__file__", None) is None
    return sorted(
        {
            f"{package.__name__}.{folder.name}"
            for path in getattr(package, "__path__", ())
            if Path(path).is_dir()
            for folder in Path(path).iterdir()
            if folder.name.isidentifier()
            and folder.name != "__pycache__"
            and folder.is_dir()
            and not (folder / "__init__.py").exists()
            and (is_namespace or any(folder.glob("*.py")))
        }
    )


def _named(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"


def _without_example(package: str, known: set[int]) -> list[str]:
    """Return the modules and Functions of a package that nobody has given an example."""
    import torch  # noqa: PLC0415 - the package has just been imported

    found = set()
    for name, module in list(sys.modules.items()):
        if not f"{name}.".startswith(f"{package}."):
            continue
        for value in list(vars(module).values()):
            if (
                isinstance(value, type)
                and issubclass(value, (torch.nn.Module, torch.autograd.Function))
                and value.__module__ == name
                and id(value) not in known
            ):
                found.add(f"{name}.{value.__qualname__}".removeprefix(f"{package}."))
    return sorted(found)


def take_example_ids(config: pytest.Config, settings: Settings) -> None:
    """Take the ids of examples out of the arguments, where pytest would look for files."""
    option = config.option
    if hasattr(option, _ONLY) and option.gradcheck_suite_examples_only:
        config.args[:] = []  # in a worker, which takes no argument for the whole folder
    if hasattr(option, _IDS):
        return
    ids = [argument for argument in config.args if argument.startswith(_PREFIX)]
    if ids:
        config.args[:] = [argument for argument in config.args if argument not in ids]
        setattr(option, _IDS, ids)
        setattr(option, _ONLY, not config.args)
    else:
        is_configured = not settings.subject("modules").startswith("--")
        setattr(option, _IDS, [] if is_configured and _names_files_or_tests(config) else None)


def examples_are_left_out(config: pytest.Config) -> bool:
    """Return whether the run is about other things than examples."""
    return getattr(config.option, _IDS, None) == []


def _selected(config: pytest.Config, items: Iterable[pytest.Item]) -> Iterator[pytest.Item]:
    """Return the examples that the run is about.

    Raises:
        pytest.UsageError: there is no example of an id that was given.
    """
    ids: list[str] | None = getattr(config.option, _IDS, None)
    if ids is None:
        yield from items
        return
    unmatched = set(ids)
    for item in items:
        matching = {given for given in ids if _matches(given, item.nodeid)}
        unmatched -= matching
        if matching:
            yield item
    if unmatched:
        raise pytest.UsageError(
            f"no example is called {', '.join(sorted(unmatched))}; to list them, add "
            "--collect-only to --gradcheck-suite-modules=PACKAGE"
        )


def _matches(given: str, node: str) -> bool:
    # Where pytest lists tests with -v, it writes :: for each dot.
    given, node = (each.replace("::", ".") for each in (given, node))
    return node == given or node.startswith((f"{given}.", f"{given}["))


def _names_files_or_tests(config: pytest.Config) -> bool:
    if config.args_source is not config.ArgsSource.ARGS:
        return False
    folder, of_packages = config.invocation_params.dir, config.getoption("pyargs")
    return not any(
        "::" not in argument and (of_packages or os.path.isdir(folder / argument))  # noqa: PTH112 - may be no path
        for argument in config.args
    )
