from torch import nn


def train_step(model: nn.Module, optimizer, x, y):
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward(create_graph=True)  # GCS206
    norm = sum(p.grad.pow(2).sum() for p in model.parameters())
    optimizer.step()
    return loss.item(), norm.item()
