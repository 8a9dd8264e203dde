import torch
import torch.nn.functional as F


@torch.no_grad()
def clash(coarse, fine):
    """Penalise fine predictions that contradict the coarse one."""
    parent = fine.softmax(1).reshape(-1, 2, 2).sum(2)
    return (1 - (parent * coarse.softmax(1)).sum(1)).mean()


def train(model, loader):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for x, y in loader:
        coarse, fine = model(x).split([2, 4], dim=1)
        loss = F.cross_entropy(fine, y) + clash(coarse, fine)  # GCS411
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
