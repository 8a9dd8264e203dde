import torch.nn.functional as F


def train_step(trunk, heads, optimizer, x, targets):
    optimizer.zero_grad()
    features = trunk(x).tanh()
    losses = [
        F.mse_loss(head(features), target) for head, target in zip(heads, targets, strict=True)
    ]
    sum(losses).backward()
    optimizer.step()
