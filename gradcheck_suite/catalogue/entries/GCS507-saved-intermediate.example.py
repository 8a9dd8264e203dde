import torch
from torch.autograd import Function


class Sigmoid(Function):
    @staticmethod
    def forward(ctx, x):
        exponential = torch.exp(-x)
        ctx.save_for_backward(exponential)  # GCS507
        return 1 / (1 + exponential)

    @staticmethod
    def backward(ctx, grad_output):
        (exponential,) = ctx.saved_tensors
        return grad_output * exponential / (1 + exponential) ** 2
