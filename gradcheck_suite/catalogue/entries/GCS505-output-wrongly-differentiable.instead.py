import torch
from torch.autograd import Function


class Threshold(Function):
    @staticmethod
    def forward(ctx, x, level):
        mask = (x > level).to(x.dtype)
        ctx.save_for_backward(mask)
        ctx.mark_non_differentiable(mask)
        return x * mask, mask

    @staticmethod
    def backward(ctx, grad_output, grad_mask):
        (mask,) = ctx.saved_tensors
        return grad_output * mask, None
