from torch.autograd import Function


class Scale(Function):
    def __init__(self, factor):
        self.factor = factor

    def forward(self, x):
        return x * self.factor

    def backward(self, grad_output):
        return grad_output * self.factor


def double(x):
    return Scale(2.0)(x)  # GCS502
