"""Video tokenizer with a data-initialised codebook: pretraining, then resuming from a checkpoint."""
import io

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Codebook(nn.Module):
    def __init__(self, num_embeddings: int, embedding_dim: int, decay: float = 0.99, epsilon: float = 1e-7):
        super().__init__()
        self.num_embeddings = num_embeddings
        self.embedding_dim = embedding_dim
        self.register_buffer("embedding", torch.empty(num_embeddings, embedding_dim))
        self.register_buffer("code_usage", torch.zeros(num_embeddings))
        self.register_buffer("code_avg", torch.empty(num_embeddings, embedding_dim))
        self.decay = decay
        self.epsilon = epsilon
        self._is_embedding_init = False

    def _init_embedding(self, encoded_flat: Tensor) -> None:
        self._is_embedding_init = True
        chosen = torch.randperm(encoded_flat.shape[0])[: self.num_embeddings]
        self.embedding.copy_(encoded_flat[chosen])
        self.code_avg.copy_(self.embedding)
        self.code_usage.fill_(1.0)

    def _ema_update(self, encoded_flat: Tensor, indices: Tensor) -> None:
        onehot = F.one_hot(indices, self.num_embeddings).type_as(encoded_flat)
        self.code_usage.mul_(self.decay).add_(onehot.sum(0), alpha=1 - self.decay)
        self.code_avg.mul_(self.decay).add_(onehot.t() @ encoded_flat, alpha=1 - self.decay)
        self.embedding.copy_(self.code_avg / (self.code_usage + self.epsilon).unsqueeze(1))

    def forward(self, z: Tensor):
        flat = z.reshape(-1, self.embedding_dim)
        if self.training and not self._is_embedding_init:
            self._init_embedding(flat.detach())
        indices = torch.cdist(flat.detach(), self.embedding).argmin(1)
        quantized = self.embedding[indices].reshape(z.shape)
        if self.training:
            self._ema_update(flat.detach(), indices)
        return z + (quantized - z).detach(), quantized, indices


class VideoTokenizer(nn.Module):
    def __init__(self, frame_dim=24, hidden=32, code_dim=8, codes=24):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(frame_dim, hidden), nn.GELU(), nn.Linear(hidden, code_dim))
        self.codebook = Codebook(codes, code_dim)
        self.decoder = nn.Sequential(nn.Linear(code_dim, hidden), nn.GELU(), nn.Linear(hidden, frame_dim))

    def forward(self, frames):
        z = self.encoder(frames)
        straight, quantized, indices = self.codebook(z)
        return self.decoder(straight), F.mse_loss(z, quantized.detach()), indices


class Trainer:
    def __init__(self, model, lr=3e-3, beta=0.25):
        self.model = model
        self.beta = beta
        self.optimizer = torch.optim.Adam(model.parameters(), lr=lr)

    def run(self, data, steps, batch_size=64):
        self.model.train()
        for step in range(steps):
            batch = data[torch.randint(0, len(data), (batch_size,))]
            recon, commit, _ = self.model(batch)
            loss = F.mse_loss(recon, batch) + self.beta * commit
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        return loss.item()

    @torch.no_grad()
    def evaluate(self, data):
        self.model.eval()
        recon, _, indices = self.model(data)
        return F.mse_loss(recon, data).item(), indices.unique().numel()

    def save(self, stream):
        torch.save({"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}, stream)

    def load(self, stream):
        checkpoint = torch.load(stream)
        self.model.load_state_dict(checkpoint["model"])
        self.optimizer.load_state_dict(checkpoint["optimizer"])


def clips(n):
    modes = torch.randn(20, 24)
    return modes[torch.randint(0, 20, (n,))] + 0.1 * torch.randn(n, 24)


def main():
    torch.manual_seed(4)
    data = clips(512)
    trainer = Trainer(VideoTokenizer())
    trainer.run(data, 200)
    print("pretrained: mse %.4f, codes used %d" % trainer.evaluate(data))
    stream = io.BytesIO()
    trainer.save(stream)
    stream.seek(0)

    resumed = Trainer(VideoTokenizer())
    resumed.load(stream)
    resumed.run(data, 40)
    print("resumed:    mse %.4f, codes used %d" % resumed.evaluate(data))
    return trainer, resumed, data


if __name__ == "__main__":
    main()
