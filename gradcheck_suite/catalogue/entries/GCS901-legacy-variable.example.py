import torch
from torch.autograd import Variable


def weights(n):
    return Variable(torch.zeros(n), requires_grad=True)  # GCS901
