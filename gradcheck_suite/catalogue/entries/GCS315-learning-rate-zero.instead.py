import torch


def train(model, batches, rate=0.004):
    groups = [
        {"params": model[:-1].parameters(), "lr": rate / 10},
        {"params": model[-1].parameters()},
    ]
    optimizer = torch.optim.SGD(groups, lr=rate)
    for x, y in batches:
        optimizer.zero_grad()
        (model(x) - y).pow(2).mean().backward()
        optimizer.step()
