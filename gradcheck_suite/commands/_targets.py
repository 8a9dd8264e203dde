"""Find what ``FILE.py:name`` names, and what a check is to be given."""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import inspect
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gradcheck_suite._runtime.frames import definition_line
from gradcheck_suite._runtime.packages import folder_that_has, module_of_file
from gradcheck_suite.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from types import ModuleType

_ARGS_AND_KWARGS = 2
_FORM = "FILE.py:name, such as model.py:attention or model.py:Net.loss"


def load_target(target: str) -> object:
    """Run the file that ``target`` names as a module and return the object in it.

    A file in a package is imported as that package's module, so that its relative imports work,
    and any other under its own stem, with its folder first on ``sys.path`` so that it finds its
    neighbours; only once however many targets name it. Whatever the file raises arrives unchanged.

    Args:
        target: ``FILE.py:name`` or ``MODULE:name``; ``name`` may be dotted (``Net.loss``).

    Raises:
        UsageError: the text has another form, or there is no such file or name.
    """
    file, colon, name = target.rpartition(":")
    if not colon or not file or not name:
        raise UsageError(f"expected {_FORM}, got {target!r}")
    if not all(part.isidentifier() for part in name.split(".")):
        raise UsageError(f"expected {_FORM}, got {target!r}: {name!r} is not a Python name")
    path = Path(file)
    module = None if path.exists() else _module_called(file)
    if module is None and not path.is_file():
        kind = "is a directory" if path.is_dir() else "does not exist"
        raise UsageError(f"{file} {kind}; expected {_FORM}")
    value: object = module or _import_file(path.resolve())
    for depth, part in enumerate(name.split(".")):
        if not hasattr(value, part):
            owner = ".".join(name.split(".")[:depth])
            raise UsageError(_no_such_name(file, part, owner=owner, names=dir(value)))
        value = getattr(value, part)
    return value


@dataclass(frozen=True, slots=True)
class Subject:
    """What a check is made of: a function or module, and its inputs as the checks take them."""

    target: Any
    inputs: Any
    kwargs: dict[str, Any] | None


def add_subject_options(parser: argparse.ArgumentParser, *, target: str) -> None:
    """Add the target, ``--inputs`` and ``--seed``; ``target`` says what the first may be."""
    parser.add_argument("target", metavar="FILE.py:TARGET", help=target)
    parser.add_argument(
        "--inputs",
        metavar="FILE.py:INPUTS",
        help="a function without arguments that makes the inputs; always needed",
    )
    parser.add_argument(
        "--seed",
        type=int,
        default=0,
        help="seed of what your files draw, of probes and random draws (default: 0)",
    )


def load_subject(arguments: argparse.Namespace) -> Subject:
    """Load what ``add_subject_options`` asks for; the files draw the same numbers in every run.

    Where the target is a module class or a function that makes a module, it is called first.

    Raises:
        UsageError: one of the names is wrong, or names something that can't be checked.
    """
    if arguments.inputs is None:
        file, _, name = arguments.target.partition(":")
        raise UsageError(
            f"{arguments.command} needs --inputs, a function without arguments that makes the "
            f"inputs, such as: gradcheck-suite {arguments.command} {file}:{name or 'TARGET'} "
            f"--inputs {file}:make_inputs"
        )
    from gradcheck_suite.verification.target.random_state import RandomState  # noqa: PLC0415 - needs torch

    # The check itself tells of a seed that can be none.
    if arguments.seed in range(2**32):
        RandomState.from_seed(arguments.seed).restore()
    target = load_target(arguments.target)
    refuse_coroutine(target, arguments.target)
    made: Any = made_by(arguments.inputs)
    inputs, kwargs = made, None
    if (
        type(made) is tuple
        and len(made) == _ARGS_AND_KWARGS
        and type(made[0]) is tuple
        and type(made[1]) is dict
    ):
        inputs, kwargs = made
    return Subject(made_module(target, arguments.target, inputs, kwargs), inputs, kwargs)


def made_module(target: Any, name: str, inputs: object, kwargs: dict[str, object] | None) -> object:
    """Return the module that a factory makes; anything else as it is.

    A factory can be called without arguments and returns a module. What takes the inputs as well
    as no arguments at all, such as ``def make(width=64)``, is one if such a call succeeds.
    """
    from torch.nn import Module  # noqa: PLC0415 - loads torch

    from gradcheck_suite.verification.target.arguments import split_arguments  # noqa: PLC0415 - as above

    is_class = isinstance(target, type)
    if isinstance(target, Module) or (is_class and not issubclass(target, Module)):
        return target
    refusal = _refusal(target)
    if is_class:
        if refusal is not None:
            raise UsageError(
                f"{name} is a module class that can't be made without arguments: {refusal}; name "
                f"a function that makes one, such as: def make(): return {target.__name__}(...)"
            )
        return target()
    if not callable(target) or refusal is not None:
        return target
    positional, keyword = split_arguments(inputs, kwargs)
    made: object = None
    if _refusal(target, *positional, **keyword) is not None:
        made = target()
    else:
        with suppress(Exception):
            made = target()
    return made if isinstance(made, Module) else target


def _refusal(function: Any, *args: object, **kwargs: object) -> TypeError | None:
    """Return why a call with these arguments fails before it begins, as far as that is known."""
    try:
        inspect.signature(function).bind(*args, **kwargs)
    except TypeError as error:
        return error
    except ValueError as error:  # built in, without a signature
        return TypeError(str(error))
    return None


def refuse_coroutine(function: object, target: str) -> None:
    """Refuse a function of which a call runs nothing, because it is an ``async def``.

    Args:
        function: what was found, or a module's forward.
        target: how to call it in the message.

    Raises:
        UsageError: it is one, or an object that is called through one.
    """
    called = function
    if not inspect.isroutine(function):
        called = inspect.getattr_static(type(function), "__call__", None)
    if not inspect.iscoroutinefunction(called):
        return
    code = inspect.unwrap(called).__code__
    raise UsageError(
        f"{target} is an async def, at {code.co_filename}:{definition_line(code)}: a call makes a "
        "coroutine and runs nothing; expected a function that returns its result. Write one round "
        f"it, such as: def run(): return asyncio.run({target.rpartition(':')[-1]}(...))"
    )


def made_by(target: str) -> object:
    """Call the function without arguments that ``--inputs`` names, and return what it makes.

    Raises:
        UsageError: there is none, it is something else, or it needs arguments.
    """
    maker = load_target(target)
    expected = (
        "expected a function without arguments that returns the inputs; write one, such as: "
        "def make_inputs(): return (torch.randn(4, 3, requires_grad=True),)"
    )
    if isinstance(maker, type) or not callable(maker):
        raise UsageError(
            f"--inputs {target} names an object of type {type(maker).__name__}, {expected}"
        )
    refuse_coroutine(maker, f"--inputs {target}")
    try:
        inspect.signature(maker).bind()
    except TypeError as error:
        raise UsageError(
            f"--inputs {target} can't be called without arguments: {error}; {expected}"
        ) from None
    except ValueError:
        pass  # built in, without a signature
    return maker()


def _module_called(name: str) -> ModuleType | None:
    """Import a module by its name, from here or from where the project keeps its packages."""
    if name.endswith(".py") or not all(part.isidentifier() for part in name.split(".")):
        return None
    folder = folder_that_has(name)
    _search_first(Path.cwd() if folder is None else folder.absolute())
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is not None and f"{name}.".startswith(f"{error.name}."):
            return None
        raise


def _search_first(folder: Path) -> None:
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))


def _import_file(path: Path) -> ModuleType:
    in_package = module_of_file(path)
    if in_package is not None:
        folder, name = in_package
        package = sys.modules.get(name.partition(".")[0])
        file = getattr(package, "__file__", None)
        if package is None or (file and Path(file).resolve().is_relative_to(folder)):
            # What runs as a script finds its neighbours in its own folder as well.
            _search_first(path.parent)
            _search_first(folder)
            module = importlib.import_module(name)
            if _same_file(getattr(module, "__file__", None), path):
                return module
    loaded = sys.modules.get(path.stem)
    if loaded is not None and _same_file(getattr(loaded, "__file__", None), path):
        return loaded
    # A file called json.py must not replace the json that everybody else uses.
    name = path.stem if loaded is None else f"_gradcheck_suite_target_{path.stem}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise UsageError(f"{path} is not a Python source file; expected {_FORM}")
    module = importlib.util.module_from_spec(spec)
    _search_first(path.parent)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _same_file(file: str | None, path: Path) -> bool:
    return file is not None and Path(file).resolve() == path


def _no_such_name(file: str, name: str, *, owner: str, names: list[str]) -> str:
    where = f"{file} ({owner})" if owner else file
    public = [other for other in names if not other.startswith("_")]
    near = difflib.get_close_matches(name, public, n=3)
    if near:
        return f"{where} has no {name!r}; did you mean {' or '.join(map(repr, near))}?"
    return f"{where} has no {name!r}; define it at the top level of the file"
