from torch import nn
from torch.utils.checkpoint import checkpoint


class Network(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.stem = nn.Linear(width, width)
        self.head = nn.Linear(width, 1)

    def forward(self, x):
        stem = checkpoint(self.stem, x, use_reentrant=True)  # GCS408
        return self.head(stem)
