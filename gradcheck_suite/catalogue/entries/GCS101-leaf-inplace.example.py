from torch import nn


def make_head(features, classes):
    head = nn.Linear(features, classes)
    head.weight *= 0.1  # GCS101
    head.bias[0] = 2.0  # GCS101
    return head
