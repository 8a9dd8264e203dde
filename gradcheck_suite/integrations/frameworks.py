"""The frameworks that are supported: how each is installed, and from which version on."""

from __future__ import annotations

import importlib
import re
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gradcheck_suite.errors import MissingDependencyError

if TYPE_CHECKING:
    from types import ModuleType

__all__ = ["ACCELERATE", "IGNITE", "LIGHTNING", "TRANSFORMERS", "Framework", "load"]


@dataclass(frozen=True, slots=True)
class Framework:
    """A framework, as people install and import it.

    Attributes:
        name: what people call it.
        modules: what may be imported, the first that is there.
        extra: the extra of gradcheck-suite that installs it; also the name of the module here.
        oldest: the first version that has what is used of it.
    """

    name: str
    modules: tuple[str, ...]
    extra: str
    oldest: tuple[int, int]


LIGHTNING = Framework("Lightning", ("lightning.pytorch", "pytorch_lightning"), "lightning", (2, 0))
TRANSFORMERS = Framework("Transformers", ("transformers",), "transformers", (4, 30))
ACCELERATE = Framework("Accelerate", ("accelerate",), "accelerate", (0, 20))
IGNITE = Framework("Ignite", ("ignite.engine",), "ignite", (0, 4))


def load(framework: Framework) -> ModuleType:
    """Import a framework; of several names that it may have, the one that the program uses.

    Raises:
        MissingDependencyError: it is not installed, its import fails, or it is too old.
    """
    names = sorted(framework.modules, key=lambda name: name not in sys.modules)
    for name in names:
        try:
            module = importlib.import_module(name)
        except Exception as error:
            if isinstance(error, ModuleNotFoundError) and _is_a_part(error.name, of=name):
                continue
            raise MissingDependencyError(
                f"gradcheck_suite.integrations.{framework.extra}: the import of the {name} that is "
                f"installed here fails ({type(error).__name__}: {' '.join(str(error).split())})"
            ) from error
        complaint = _complaint_about(framework, name, module)
        if complaint is not None:
            raise MissingDependencyError(complaint)
        return module
    raise MissingDependencyError(
        f"gradcheck_suite.integrations.{framework.extra} needs {framework.name}, which is not "
        f"installed here; install it with: pip install 'gradcheck-suite[{framework.extra}]'"
    )


def _is_a_part(missing: str | None, *, of: str) -> bool:
    """Return whether what can't be found is the module itself or a package that it lies in."""
    return missing is not None and f"{of}.".startswith(f"{missing}.")


def _complaint_about(framework: Framework, name: str, module: ModuleType) -> str | None:
    """Return what to say of a version that is too old; None for any other, or where it has none."""
    top = sys.modules.get(name.partition(".")[0], module)
    version = str(getattr(module, "__version__", getattr(top, "__version__", "")))
    numbers = re.match(r"(\d+)\.(\d+)", version)
    if numbers is None or (int(numbers[1]), int(numbers[2])) >= framework.oldest:
        return None
    oldest = ".".join(map(str, framework.oldest))
    return (
        f"gradcheck_suite.integrations.{framework.extra} needs {framework.name} {oldest} or later, "
        f"and {version} is installed here; upgrade it: pip install --upgrade "
        f"'gradcheck-suite[{framework.extra}]'"
    )
