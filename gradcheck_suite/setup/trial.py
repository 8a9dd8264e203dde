"""Try the run-time half in a process of its own, whose end costs nobody anything.

The import of a broken torch may end a process, or hang it. ``python -m`` is not used: a module of
the user's folder would then come first, as it does not for an installed command.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

__all__ = ["report_trial", "try_run_time"]

_PATIENCE = 300
"""How many seconds torch may take to be imported and used: minutes, from a cold network disk."""
_PROGRAM = """\
import json, sys
sys.path[:] = json.loads(sys.argv[1])
from gradcheck_suite.setup.trial import report_trial
report_trial()
"""


def try_run_time() -> dict[str, Any]:
    """Return what ``report_trial`` finds, or under "fails" how its process ended."""
    try:
        done = subprocess.run(
            [sys.executable, "-c", _PROGRAM, json.dumps(sys.path)],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return {"fails": f"torch was not imported and used within {_PATIENCE} s"}
    except OSError as error:
        return {"fails": f"Python could not be started to try it: {error}"}
    try:
        result: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    except (IndexError, ValueError):
        last = (done.stderr.strip().splitlines() or ["and said nothing"])[-1]
        return {"fails": f"a process that imports torch ended with {done.returncode}: {last}"}
    return result


def report_trial() -> None:
    """Import torch, use it, and print what was found as one line of JSON."""
    try:
        result = _trial()
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what doctor is asked for
        result = {"fails": " ".join(f"{type(error).__name__}: {error}".split())}
    sys.stdout.write("\n" + json.dumps(result) + "\n")


def _trial() -> dict[str, Any]:
    from gradcheck_suite._torch_floor import require_torch  # noqa: PLC0415 - it is what is tried
    from gradcheck_suite.errors import MissingDependencyError  # noqa: PLC0415 - as above

    try:
        require_torch()
    except ModuleNotFoundError:
        return {"absent": True}
    except MissingDependencyError as error:
        return {"fails": str(error), **_about_torch()}
    return {**_about_torch(), **_used()}


def _about_torch() -> dict[str, Any]:
    torch: Any = sys.modules.get("torch")
    version = getattr(torch, "__version__", None)
    return {} if version is None else {"version": str(version), "path": torch.__file__}


def _used() -> dict[str, Any]:
    """Check a gradient, audit a step and trace its graph: each of the three rooms at work."""
    import torch  # noqa: PLC0415 - it is what is tried

    import gradcheck_suite as gs  # noqa: PLC0415 - as above
    from gradcheck_suite._torch_compat import limits  # noqa: PLC0415 - as above

    leaf = torch.ones(2, dtype=torch.float64, requires_grad=True)
    broken = [] if gs.check_gradients(torch.sin, leaf).ok else ["gs.check_gradients"]
    optimizer = torch.optim.SGD([leaf], lr=0.1)
    with gs.audit(optimizers=[optimizer], report=False) as session:
        loss = leaf.sin().sum()
        nodes = len(gs.trace_graph(loss).nodes)
        torch.autograd.backward(loss)
        optimizer.step()
    broken += [] if session.report.summary.get("backwards") == 1 else ["gs.audit"]
    broken += [] if nodes else ["gs.trace_graph"]
    result: dict[str, Any] = {
        "limits": list(limits()),
        "accelerator": _accelerator(),
        "distributed": torch.distributed.is_available(),
    }
    if broken:
        result["fails"] = f"{' and '.join(broken)} did not see what was to be seen"
    return result


def _accelerator() -> str | None:
    import torch  # noqa: PLC0415 - it is what is tried

    if torch.cuda.is_available():
        return torch.cuda.get_device_name()
    return "mps" if torch.backends.mps.is_available() else None
