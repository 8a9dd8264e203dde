from torch.autograd import Function


class Scale(Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        ctx.layout = x.shape, x.stride()
        return x * factor

    @staticmethod
    def backward(ctx, grad_output):
        return grad_output.as_strided(*ctx.layout) * ctx.factor, None
