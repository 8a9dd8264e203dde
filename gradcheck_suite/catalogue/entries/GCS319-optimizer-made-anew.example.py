import torch


def step(model, x, y):
    optimizer = torch.optim.Adam(model.parameters())  # GCS319
    optimizer.zero_grad()
    loss = (model(x) - y).pow(2).mean()
    loss.backward()
    optimizer.step()
    return loss.item()


def train(model, batches):
    for x, y in batches:
        step(model, x, y)
