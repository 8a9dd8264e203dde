from torch import nn
from torch.utils.checkpoint import checkpoint


class Encoder(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inp = nn.Linear(width, width)
        self.body = nn.Sequential(nn.Linear(width, width), nn.Dropout(0.5))

    def forward(self, x):
        return checkpoint(
            self.body,
            self.inp(x),
            use_reentrant=False,
            preserve_rng_state=False,  # GCS613
        )
