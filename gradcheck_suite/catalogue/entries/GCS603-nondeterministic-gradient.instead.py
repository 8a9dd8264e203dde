import torch
from torch.autograd import Function

buffers = {}


class Double(Function):
    @staticmethod
    def forward(ctx, x):
        return 2 * x

    @staticmethod
    def backward(ctx, grad_output):
        shape = grad_output.shape
        if shape not in buffers:
            buffers[shape] = torch.zeros_like(grad_output)
        buffers[shape].zero_()
        buffers[shape] += 2 * grad_output
        return buffers[shape].clone()
