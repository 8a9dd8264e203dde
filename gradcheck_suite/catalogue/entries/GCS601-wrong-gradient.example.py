import torch
from torch.autograd import Function


class RMSNorm(Function):
    @staticmethod
    def forward(ctx, x):
        scale = x.pow(2).mean(dim=-1, keepdim=True).rsqrt()
        ctx.save_for_backward(x)
        return x * scale

    @staticmethod
    def backward(ctx, grad_output):
        (x,) = ctx.saved_tensors
        scale = x.pow(2).mean(dim=-1, keepdim=True).rsqrt()
        return grad_output * scale


class Lookup(Function):
    @staticmethod
    def forward(ctx, table, index):
        ctx.save_for_backward(index)
        ctx.shape = table.shape
        return table[index]

    @staticmethod
    def backward(ctx, grad_output):
        (index,) = ctx.saved_tensors
        grad_table = grad_output.new_zeros(ctx.shape)
        grad_table[index] = grad_output  # GCS601
        return grad_table, None
