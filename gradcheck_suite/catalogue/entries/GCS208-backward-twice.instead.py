import torch.nn.functional as F


def train_step(trunk, heads, optimizer, x, targets):
    optimizer.zero_grad()
    features = trunk(x).tanh()
    loss = 0.0
    for head, target in zip(heads, targets, strict=True):
        loss = loss + F.mse_loss(head(features), target)
    loss.backward()
    optimizer.step()
