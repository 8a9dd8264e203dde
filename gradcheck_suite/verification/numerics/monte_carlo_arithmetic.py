"""Compute again with the results of arithmetic rounded to a neighbour: how far rounding reaches.

Inputs that differ in their last bit show what rounding does to most backwards, but not to one in
which it cancels or comes in along with a constant: ``(x + c) - c`` loses the same for every such
``x``. Here every result of an operator that rounds moves by its last bit, up or down (D. S. Parker,
"Monte Carlo arithmetic", 1997). Which way depends on the number and the draw alone: what was equal
stays equal, and what is computed twice comes out the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from gradcheck_suite import _torch_compat

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

__all__ = ["random_rounding"]

_BITS = {torch.float64: torch.int64, torch.float32: torch.int32}
_COMPLEX = {torch.complex128: torch.float64, torch.complex64: torch.float32}
# Operators whose results are rounded. Others, such as a maximum, a gather or a copy, hand numbers
# on: theirs must stay equal to those that they come from. In-place variants and views are left
# alone, so that nothing of the caller's is written to.
_ROUNDING = frozenset(
    """
    add sub rsub mul div pow addcmul addcdiv lerp square sqrt rsqrt reciprocal exp exp2 expm1 log
    log2 log10 log1p sin cos tan asin acos atan atan2 sinh cosh tanh asinh acosh atanh sigmoid erf
    erfc erfinv lgamma digamma polygamma logit hypot logaddexp logaddexp2 sum mean prod var std
    cumsum cumprod logcumsumexp logsumexp mm bmm mv dot vdot addmm addmv addr baddbmm addbmm matmul
    linear einsum outer ger cdist linalg_vector_norm norm _softmax _log_softmax gelu silu softplus
    elu mish log_sigmoid nll_loss mse_loss convolution index_add scatter_add
    _softmax_backward_data _log_softmax_backward_data tanh_backward sigmoid_backward gelu_backward
    silu_backward softplus_backward elu_backward mish_backward mse_loss_backward trace
    linalg_inv_ex linalg_solve_triangular cholesky_solve fft_fft fft_ifft _fft_c2c _fft_r2c _fft_c2r
    """.split()  # noqa: SIM905 - a list of a hundred words reads better so
)
_MIX = {torch.int64: 6364136223846793005, torch.int32: 1284865837}
"""An odd multiplier mixes all lower bits into the highest (Knuth's MMIX, its low half for int32);
any that does would do."""


def random_rounding(draw: int) -> AbstractContextManager[None]:
    """Return a context in which results of arithmetic are rounded to a neighbour.

    Args:
        draw: which of two neighbours each number gets depends on it.
    """

    def change(operator: _torch_compat.Operator, result: torch.Tensor) -> torch.Tensor:
        name = operator.overloadpacket.__name__
        rounds = name in _ROUNDING and result.layout is torch.strided
        return _moved(result, draw) if rounds else result

    return _torch_compat.changing_results(change)


def _moved(values: torch.Tensor, draw: int) -> torch.Tensor:
    if values.dtype in _COMPLEX:
        return torch.view_as_complex(_moved(torch.view_as_real(values), draw))
    kind = _BITS.get(values.dtype)
    if kind is None:
        return values
    hashed = (values.contiguous().view(kind) + draw) * _MIX[kind]
    towards = torch.where(hashed < 0, -torch.inf, torch.inf).to(values.dtype)
    # Zeros and what is not finite are no matter of rounding.
    exact = (values == 0) | ~torch.isfinite(values)
    return torch.where(exact, values, torch.nextafter(values, towards))
