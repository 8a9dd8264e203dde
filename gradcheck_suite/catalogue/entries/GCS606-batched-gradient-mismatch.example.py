from torch.autograd import Function


class Cumulate(Function):
    @staticmethod
    def forward(x):
        return x.cumsum(0)

    @staticmethod
    def setup_context(ctx, inputs, output):
        pass

    @staticmethod
    def backward(ctx, grad_output):
        return Cumulate.apply(grad_output.flip(0)).flip(0)

    @staticmethod
    def vmap(info, in_dims, x):
        return Cumulate.apply(x), in_dims[0]
