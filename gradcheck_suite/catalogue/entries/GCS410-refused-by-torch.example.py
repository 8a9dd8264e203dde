import torch.nn.functional as F


def train_step(model, optimizer, x, labels):
    optimizer.zero_grad()
    loss = F.cross_entropy(model(x), labels, reduction="none")
    loss.backward()
    optimizer.step()
