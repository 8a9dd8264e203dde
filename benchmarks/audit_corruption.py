"""How many silent overwrites of saved tensors the audit catches, beside torch itself.

Each draw takes a small model, one of the tensors that its forward saved, a kind of edit and a route
that torch does not see, all by one seed. A draw counts if the gradients with and without the edit
differ in any bit. Everything is checksummed, as it is on the first three steps of a default audit.
"""

from __future__ import annotations

import contextlib
import ctypes
import random
import sys
import threading
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

import gradcheck_suite as gs
from benchmarks.corruption_subjects import SUBJECTS
from benchmarks.harness import Scores, run_as_command

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator

COMMAND = "python -m benchmarks.audit_corruption"
LEAST_CAUGHT = 0.99
_TELLS = 100
_GIVES_UP = 40


@dataclass(frozen=True, slots=True)
class Draw:
    """One edit: which saved tensor of which model, what is done to it, and by which route."""

    seed: int
    subject: str
    kind: str
    route: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of a draw.

    Attributes:
        changed: whether the gradients differ from those without the edit.
        refused: whether torch raised an error of its own.
        caught: whether the audit told of an overwritten tensor.
    """

    changed: bool
    refused: bool
    caught: bool


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add how much is to be drawn."""
    parser.add_argument("--draws", type=int, default=1000, help="draws that change a gradient")
    parser.add_argument("--first", type=int, default=0, metavar="SEED", help="the first seed")
    parser.add_argument("--misses", action="store_true", help="print each draw that was missed")


def run(arguments: argparse.Namespace) -> Scores:
    """Draw until so many edits have changed a gradient."""
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    tally: Counter[tuple[str, str]] = Counter()
    seed = arguments.first
    while tally["all", "changed"] < arguments.draws:
        draw = _draw(seed)
        seed += 1
        outcome = tried(draw)
        if outcome is None:
            continue
        for row in ("all", draw.route, draw.kind, draw.subject):
            tally[row, "drawn"] += 1
            tally[row, "changed"] += outcome.changed
            tally[row, "caught"] += outcome.changed and outcome.caught
            tally[row, "torch"] += outcome.changed and outcome.refused
        if outcome.changed and not outcome.caught and arguments.misses:
            print(f"missed: {draw}", file=sys.stderr, flush=True)
        if not tally["all", "drawn"] % _TELLS:
            caught, changed = tally["all", "caught"], tally["all", "changed"]
            print(f"seed {seed}: {caught} of {changed} caught", file=sys.stderr, flush=True)
    rows = tuple(
        (
            name,
            tally[name, "drawn"],
            tally[name, "changed"],
            tally[name, "caught"],
            tally[name, "caught"] / max(tally[name, "changed"], 1),
            tally[name, "torch"],
        )
        for name in ("all", *ROUTES, *EDITS, *SUBJECTS)
    )
    return Scores(
        title="Silent overwrites of saved tensors",
        command=COMMAND,
        columns=("", "edits", "gradient changed", "caught", "share", "torch raised"),
        rows=rows,
        goal=f"at least {LEAST_CAUGHT:.0%} of {arguments.draws} edits that change a gradient",
        met=tally["all", "caught"] >= LEAST_CAUGHT * tally["all", "changed"],
    )


def _draw(seed: int) -> Draw:
    pick = random.Random(seed)
    return Draw(
        seed=seed,
        subject=pick.choice(list(SUBJECTS)),
        kind=pick.choice(list(EDITS)),
        route=pick.choice(list(ROUTES)),
    )


def tried(draw: Draw) -> Outcome | None:
    """Run a draw three times: untouched, edited, and edited under audit; None if it can't be."""
    clean, _, possible = _gradients(draw, edit=False)
    if not possible:
        return None
    edited, refused, _ = _gradients(draw, edit=True)
    changed = refused or not all(map(_same_bits, clean, edited))
    with gs.audit(report=False) as session:
        audited, _, _ = _gradients(draw, edit=True)
    assert refused or all(map(_same_bits, edited, audited)), f"the audit changed {draw}"
    codes = {finding.code for finding in session.findings}
    return Outcome(changed=changed, refused=refused, caught=bool(codes & {"GCS103", "GCS104"}))


def _gradients(draw: Draw, *, edit: bool) -> tuple[list[Tensor | None], bool, bool]:
    """Return the gradients, whether torch raised, and whether the edit is possible."""
    torch.manual_seed(draw.seed)
    model, forward = SUBJECTS[draw.subject]()
    loss = forward()
    pick = random.Random(draw.seed + 1)
    target = _target(draw, loss, model, pick)
    if target is None:
        return [], False, False
    tensor, values = target
    if edit:
        ROUTES[draw.route](tensor, values)
    refused = False
    try:
        loss.backward()
    except RuntimeError:
        refused = True
    return [parameter.grad for parameter in model.parameters()], refused, True


def _target(
    draw: Draw, loss: Tensor, model: nn.Module, pick: random.Random
) -> tuple[Tensor, Tensor] | None:
    """Choose a saved tensor that can be edited so, and its new contents."""
    # A node hands out another tensor than the leaf itself where hooks hold what it saved.
    leaves = {(leaf.data_ptr(), leaf.shape): leaf for leaf in model.parameters()}
    saved = list(_saved_tensors(loss))
    pick.shuffle(saved)
    for tensor in saved[:_GIVES_UP]:
        if draw.route == "tensor.data = other":
            leaf = leaves.get((tensor.data_ptr(), tensor.shape)) if tensor.is_leaf else None
            if leaf is None:
                continue
            tensor = leaf  # noqa: PLW2901 - the same tensor
        values = tensor.detach().clone(memory_format=torch.preserve_format)
        if not _is_plain(tensor) or not EDITS[draw.kind](values, pick):
            continue
        if not torch.equal(_bits(values), _bits(tensor.detach())):
            return tensor, values
    return None


def _saved_tensors(loss: Tensor) -> Iterator[Tensor]:
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop(0)
        if node is None or node in seen:
            continue
        seen.add(node)
        for name in sorted(name for name in dir(node) if name.startswith("_saved_")):
            with contextlib.suppress(RuntimeError):
                value = getattr(node, name)
                values = value if isinstance(value, (tuple, list)) else (value,)
                yield from (part for part in values if isinstance(part, Tensor) and part.numel())
        with contextlib.suppress(AttributeError, RuntimeError):
            yield from (part for part in node.saved_tensors if part is not None)
        waiting.extend(following for following, _ in node.next_functions)


def _is_plain(tensor: Tensor) -> bool:
    """Return whether each element has memory of its own, so that all of them can be set."""
    # What no program gets hold of: a number of the source (`x / 2.5`), which torch keeps as tensor
    # and shows to no hook, and the workspace of a fused kernel (oneDNN's LSTM), scratch memory.
    is_number = not tensor.dim() and not tensor.requires_grad and tensor.element_size() == 8
    is_workspace = tensor.dtype is torch.uint8
    dense = tensor.layout is torch.strided and 0 not in tensor.stride() and tensor.is_cpu
    return dense and not is_number and not is_workspace


def _bits(tensor: Tensor) -> Tensor:
    return tensor.contiguous().view(-1).view(torch.uint8)


def _same_bits(one: Tensor | None, other: Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return torch.equal(_bits(one), _bits(other))


def _element(values: Tensor, pick: random.Random) -> tuple[Tensor, int]:
    flat = (
        values.reshape(-1) if values.is_contiguous() else values.as_strided((values.numel(),), (1,))
    )
    return flat, pick.randrange(flat.numel())


def _one_element(values: Tensor, pick: random.Random) -> bool:
    if not values.is_floating_point():
        return False
    flat, place = _element(values, pick)
    flat[place] += 0.5
    return True


def _tiny_change(values: Tensor, pick: random.Random) -> bool:
    if not values.is_floating_point():
        return False
    flat, place = _element(values, pick)
    flat[place] *= 1 + (1e-3 if values.dtype != torch.bfloat16 else 1e-2)
    return True


def _one_bit(values: Tensor, pick: random.Random) -> bool:
    if not values.is_floating_point():
        return False
    flat, place = _element(values, pick)
    words = {2: torch.int16, 4: torch.int32, 8: torch.int64}[flat.element_size()]
    flat.view(words)[place] ^= 1
    return True


def _slice_to_zero(values: Tensor, pick: random.Random) -> bool:
    if not values.dim():
        return False
    start = pick.randrange(values.shape[0])
    values[start : start + 1 + pick.randrange(3)] = 0
    return True


def _scale(values: Tensor, pick: random.Random) -> bool:
    if not values.is_floating_point():
        return False
    values *= pick.choice([0.5, 1.01, 2.0, 100.0])
    return True


def _negate(values: Tensor, _pick: random.Random) -> bool:
    if values.dtype is torch.bool:
        values ^= True
        return True
    if not values.is_floating_point():
        return False
    values.neg_()
    return True


def _negate_two(values: Tensor, pick: random.Random) -> bool:
    if not values.is_floating_point() or values.numel() < 2:
        return False
    flat, place = _element(values, pick)
    flat[[place, place - 1]] = -flat[[place, place - 1]]
    return True


def _swap_blocks(values: Tensor, pick: random.Random) -> bool:
    if not values.dim() or values.shape[0] < 2:
        return False
    half = values.shape[0] // 2
    size = 1 + pick.randrange(half)
    first = values[:size].clone()
    values[:size] = values[half : half + size]
    values[half : half + size] = first
    return True


def _permute(values: Tensor, pick: random.Random) -> bool:
    flat, _ = _element(values, pick)
    order = list(range(flat.numel()))
    pick.shuffle(order)
    flat.copy_(flat[torch.tensor(order)].clone())
    return True


def _flip(values: Tensor, _pick: random.Random) -> bool:
    if not values.dim():
        return False
    values.copy_(values.flip(-1).clone())
    return True


def _noise(values: Tensor, pick: random.Random) -> bool:
    if not values.is_floating_point():
        return False
    generator = torch.Generator().manual_seed(pick.randrange(1 << 30))
    values += torch.randn(values.shape, generator=generator).to(values.dtype) / 10
    return True


def _infinity(values: Tensor, pick: random.Random) -> bool:
    if not values.is_floating_point():
        return False
    flat, place = _element(values, pick)
    flat[place] = float(pick.choice(["inf", "nan"]))
    return True


EDITS: dict[str, Callable[[Tensor, random.Random], bool]] = {
    "one element + 0.5": _one_element,
    "one element * 1.001": _tiny_change,
    "lowest bit of one element": _one_bit,
    "slice to zero": _slice_to_zero,
    "scale": _scale,
    "all signs": _negate,
    "two signs": _negate_two,
    "two blocks swapped": _swap_blocks,
    "permutation": _permute,
    "last dimension flipped": _flip,
    "noise": _noise,
    "infinity or NaN": _infinity,
}


def _by_data(tensor: Tensor, values: Tensor) -> None:
    tensor.data.copy_(values)


def _by_other_memory(tensor: Tensor, values: Tensor) -> None:
    tensor.data = values


def _by_numpy(tensor: Tensor, values: Tensor) -> None:
    alias = tensor.detach()
    if tensor.dtype is torch.bfloat16:
        alias, values = alias.view(torch.int16), values.view(torch.int16)
    alias.numpy()[...] = values.numpy()


def _by_thread(tensor: Tensor, values: Tensor) -> None:
    thread = threading.Thread(target=_by_numpy, args=(tensor, values))
    thread.start()
    thread.join()


def _by_dlpack(tensor: Tensor, values: Tensor) -> None:
    if tensor.dtype is torch.bool:
        _by_numpy(tensor, values)
    else:
        torch.from_dlpack(tensor.detach()).copy_(values)


def _by_dispatcher(tensor: Tensor, values: Tensor) -> None:
    torch.ops.aten.copy_.default(tensor.data, values)


def _by_out(tensor: Tensor, values: Tensor) -> None:
    torch.where(torch.tensor(True), values, values, out=tensor.data)


def _by_address(tensor: Tensor, values: Tensor) -> None:
    # Both have the same strides: a clone that keeps the format, of a tensor without overlaps.
    span = 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))
    if tensor.stride() == values.stride() and span == tensor.numel():
        ctypes.memmove(tensor.data_ptr(), values.data_ptr(), values.nbytes)
    else:
        _by_numpy(tensor, values)


def _by_storage(tensor: Tensor, values: Tensor) -> None:
    whole = tensor.untyped_storage()
    if tensor.stride() == values.stride() and whole.nbytes() == values.untyped_storage().nbytes():
        whole.copy_(values.untyped_storage())
    else:
        _by_numpy(tensor, values)


ROUTES: dict[str, Callable[[Tensor, Tensor], None]] = {
    "tensor.data.copy_": _by_data,
    "tensor.data = other": _by_other_memory,
    "numpy view": _by_numpy,
    "numpy view in a thread": _by_thread,
    "DLPack": _by_dlpack,
    "torch.ops on .data": _by_dispatcher,
    "out= on .data": _by_out,
    "ctypes.memmove": _by_address,
    "storage.copy_": _by_storage,
}


if __name__ == "__main__":
    sys.exit(run_as_command(run, add_options))
