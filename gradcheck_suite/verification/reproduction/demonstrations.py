"""What a script does to show a mistake with plain torch, as source text.

Each demonstration is a ``main()`` that prints and returns whether the mistake is there. It may use
``setup()``, which makes everything anew: what is called, its arguments, and by name the tensors
that need a gradient.
"""

from __future__ import annotations

from typing import Final

__all__ = ["COMMON", "GRADIENT", "LINEAR", "REPEATED", "SECOND_ORDER", "WITH_SUITE"]

COMMON: Final = '''
def tensors_in(value):
    """List the floating-point and complex tensors that a call returned."""
    if isinstance(value, torch.Tensor):
        return [value] if value.is_floating_point() or value.is_complex() else []
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (tuple, list)):
        return [tensor for one in value for tensor in tensors_in(one)]
    return []


def weighted(tensor):
    """Sum a tensor with weights from 0.5 to 1.5, so that no two entries are alike."""
    weights = torch.linspace(0.5, 1.5, max(tensor.numel(), 1), dtype=tensor.real.dtype)
    total = (tensor.real * weights[: tensor.numel()].reshape(tensor.shape)).sum()
    if tensor.is_complex():
        total = total + (tensor.imag * weights.flip(0).reshape(tensor.shape)).sum()
    return total


def loss_of(target, args, kwargs):
    torch.manual_seed(SEED)
    return sum(map(weighted, tensors_in(target(*args, **kwargs))))


def gradients_of(loss, leaves, **options):
    """Return what backward gives, with zeros for None."""
    tensors = list(leaves.values())
    if not loss.requires_grad:
        return [torch.zeros_like(tensor) for tensor in tensors]
    found = torch.autograd.grad(loss, tensors, allow_unused=True, **options)
    return [torch.zeros_like(t) if g is None else g for t, g in zip(tensors, found)]
'''

_COMPARED: Final = '''
def numeric(name, index, step):
    """Return the central difference of the loss along one entry."""
    values = []
    for sign in (1, -1):
        made = setup()
        with torch.no_grad():
            made[-1][name][index] += sign * step
        values.append(float(loss(*made).detach()))
    return (values[0] - values[1]) / (2 * abs(step))


def main():
    made = setup()
    wrong = 0
    print(f"{'entry':24s} {'backward':>14s} {'numeric':>14s}")
    for (name, tensor), gradient in zip(made[-1].items(), gradients_of(loss(*made), made[-1])):
        for index in itertools.product(*map(range, tensor.shape)):
            step = STEP * max(1.0, float(tensor[index].detach().abs()))
            backward = complex(gradient[index].detach())
            measured = complex(numeric(name, index, step))
            if tensor.is_complex():
                measured += 1j * numeric(name, index, 1j * step)
            bound = TOLERANCE * max(1.0, abs(measured), abs(backward))
            differs = not abs(backward - measured) <= bound
            wrong += differs
            entry = name + (str(list(index)) if index else "")
            if not tensor.is_complex():
                backward, measured = backward.real, measured.real
            words = f"WRONG, expected within {bound:.1g}" if differs else ""
            print(f"{entry:24s} {backward:14.8g} {measured:14.8g}   {words}")
    print(f"{wrong} wrong" if wrong else "all right")
    return wrong > 0
'''

GRADIENT: Final = (
    """
def loss(target, args, kwargs, leaves):
    return loss_of(target, args, kwargs)
"""
    "\n" + _COMPARED
)
"""Backward beside central differences, entry by entry."""

SECOND_ORDER: Final = (
    '''
def loss(target, args, kwargs, leaves):
    """Make a number of the gradients: its own gradient is that of double backward."""
    first = loss_of(target, args, kwargs)
    return sum(map(weighted, gradients_of(first, leaves, create_graph=True)))
'''
    "\n" + _COMPARED
)
"""The same of a function of the gradients."""

_SAME: Final = """
def main():
    wrong = 0
    for name, one, two in pairs():
        apart = float((one - two).abs().max()) if one.numel() else 0.0
        size = float(torch.maximum(one.abs(), two.abs()).max()) if one.numel() else 0.0
        differs = not apart <= TOLERANCE * size
        wrong += differs
        print(f"{name}: largest difference {apart:.6g}, expected within {TOLERANCE * size:.3g}"
              + ("   WRONG" if differs else ""))
    return wrong > 0
"""

LINEAR: Final = (
    '''
def pairs():
    """Yield the gradients for an incoming gradient g, and those for -1024 g over -1024."""
    found = []
    for factor in (1.0, -1024.0):
        *called, leaves = setup()
        found.append([one / factor for one in gradients_of(loss_of(*called) * factor, leaves)])
    yield from zip(leaves, *found)
'''
    "\n" + _SAME
)
"""Whether backward is linear in the incoming gradient."""

REPEATED: Final = (
    '''
def pairs():
    """Yield the gradients of two backwards through one graph, then of two equal calls."""
    *called, leaves = setup()
    loss = loss_of(*called)
    one, two = [
        [part.clone() for part in gradients_of(loss, leaves, retain_graph=True)] for _ in "12"
    ]
    yield from zip(leaves, one, two)
    *called, leaves = setup()
    yield from zip(leaves, one, gradients_of(loss_of(*called), leaves))
'''
    "\n" + _SAME
)
"""Whether equal backwards give equal gradients."""

WITH_SUITE: Final = """
def main():
    # Plain torch does not show this one in a few lines: gradcheck-suite checks it again.
    import gradcheck_suite

    target, args, kwargs, _ = setup()
    report = gradcheck_suite.check_gradients(target, args, kwargs=kwargs)
    print(report)
    return any(finding.code == CODE for finding in report.findings)
"""
"""The same check, made again by gradcheck-suite."""
