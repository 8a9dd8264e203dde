from torch.autograd import Function


class Identity(Function):
    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.clamp(-1, 1)  # GCS610
