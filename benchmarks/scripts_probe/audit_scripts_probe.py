"""Seed a script, hash what each optimizer step leaves, end it after some steps, fake its data.

It runs in the script's own process, the same with and without an audit. Settings come by the
environment: ``AUDIT_SCRIPTS_RESULT`` (where the hash goes), ``AUDIT_SCRIPTS_STEPS`` (how many
optimizer steps) and ``AUDIT_SCRIPTS_SHIMS`` (what to stand in for, by commas).
"""

from __future__ import annotations

import atexit
import hashlib
import json
import os
import random
import sys
from pathlib import Path

import numpy as np
import torch
from torch.optim.optimizer import (
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)


def start() -> None:
    """Put everything in place."""
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    result = Path(os.environ["AUDIT_SCRIPTS_RESULT"])
    limit = int(os.environ.get("AUDIT_SCRIPTS_STEPS", "0"))
    digest = hashlib.sha256()
    steps = 0
    process = os.getpid()

    def before(*_: object) -> None:
        if limit and steps >= limit and os.getpid() == process:
            sys.exit(0)

    def after(optimizer: torch.optim.Optimizer, *_: object) -> None:
        nonlocal steps
        steps += 1
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                digest.update(parameter.detach().contiguous().view(-1).view(torch.uint8).numpy())

    def end() -> None:
        if os.getpid() == process:
            for state in (torch.get_rng_state().numpy(), np.random.get_state()[1]):
                digest.update(state)
            digest.update(repr(random.getstate()).encode())
            result.write_text(json.dumps({"steps": steps, "hash": digest.hexdigest()}))

    register_optimizer_step_pre_hook(before)
    register_optimizer_step_post_hook(after)
    atexit.register(end)
    _mend_old_names()
    for name in filter(None, os.environ.get("AUDIT_SCRIPTS_SHIMS", "").split(",")):
        __import__(f"shim_{name}")


def _mend_old_names() -> None:
    """Give numpy the aliases that older scripts use."""
    for name, kind in (("float", float), ("int", int), ("bool", bool), ("product", np.prod)):
        if name not in np.__dict__:
            setattr(np, name, kind)
