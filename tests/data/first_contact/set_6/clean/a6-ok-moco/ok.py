"""Momentum contrast with a queue, followed by a binarised linear probe."""
import torch
from torch import nn
from torch.nn import functional as F


class Encoder(nn.Module):
    def __init__(self, dim_in=20, hidden=48, dim=16):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(dim_in, hidden), nn.BatchNorm1d(hidden), nn.ReLU(), nn.Linear(hidden, hidden))
        self.fc = nn.Sequential(nn.ReLU(), nn.Linear(hidden, dim))

    def forward(self, x):
        return self.fc(self.trunk(x))


class MoCo(nn.Module):
    def __init__(self, K=128, m=0.97, T=0.2):
        super().__init__()
        self.K, self.m, self.T = K, m, T
        self.encoder_q = Encoder()
        self.encoder_k = Encoder()
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data.copy_(param_q.data)
            param_k.requires_grad = False
        self.register_buffer("queue", F.normalize(torch.randn(16, K), dim=0))
        self.register_buffer("queue_ptr", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def _momentum_update_key_encoder(self):
        for param_q, param_k in zip(self.encoder_q.parameters(), self.encoder_k.parameters()):
            param_k.data = param_k.data * self.m + param_q.data * (1.0 - self.m)

    @torch.no_grad()
    def _dequeue_and_enqueue(self, keys):
        ptr = int(self.queue_ptr)
        self.queue[:, ptr:ptr + len(keys)] = keys.T
        self.queue_ptr[0] = (ptr + len(keys)) % self.K

    def forward(self, im_q, im_k):
        q = F.normalize(self.encoder_q(im_q), dim=1)
        with torch.no_grad():
            self._momentum_update_key_encoder()
            perm = torch.randperm(len(im_k))
            k = F.normalize(self.encoder_k(im_k[perm]), dim=1)[perm.argsort()]
        l_pos = torch.einsum("nc,nc->n", q, k).unsqueeze(-1)
        l_neg = torch.einsum("nc,ck->nk", q, self.queue.clone().detach())
        logits = torch.cat([l_pos, l_neg], dim=1) / self.T
        self._dequeue_and_enqueue(k)
        return logits, torch.zeros(len(logits), dtype=torch.long)


class BinarizeSTE(torch.autograd.Function):
    @staticmethod
    def forward(ctx, weight):
        ctx.save_for_backward(weight)
        return weight.sign()

    @staticmethod
    def backward(ctx, grad_output):
        weight, = ctx.saved_tensors
        return grad_output * (weight.abs() <= 1).to(grad_output.dtype)


class BinaryLinear(nn.Linear):
    def forward(self, x):
        return F.linear(x, BinarizeSTE.apply(self.weight) / self.in_features ** 0.5, self.bias)


def samples(n, centres):
    y = torch.randint(0, len(centres), (n,))
    return centres[y] + 0.5 * torch.randn(n, centres.shape[1]), y


def augment(x):
    mask = (torch.rand_like(x) > 0.15).float()
    return x * mask + 0.1 * torch.randn_like(x)


def pretrain(model, centres, steps=100):
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1, momentum=0.9, weight_decay=1e-4)
    model.train()
    meter = 0.0
    for step in range(steps):
        x, _ = samples(32, centres)
        logits, labels = model(augment(x), augment(x))
        loss = F.cross_entropy(logits, labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        meter += loss.item()
        if step % 50 == 49:
            print(f"step {step + 1} contrastive loss {meter / 50:.4f}")
            meter = 0.0


def probe(encoder, centres, steps=80):
    encoder.requires_grad_(False)
    encoder.eval()
    head = BinaryLinear(48, len(centres))
    optimizer = torch.optim.Adam(head.parameters(), lr=1e-2)
    for _ in range(steps):
        x, y = samples(64, centres)
        with torch.no_grad():
            features = encoder.trunk(x)
        loss = F.cross_entropy(head(features), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        x, y = samples(512, centres)
        return (head(encoder.trunk(x)).argmax(1) == y).float().mean().item()


def main():
    torch.manual_seed(8)
    centres = torch.randn(6, 20)
    model = MoCo()
    pretrain(model, centres)
    print(f"probe accuracy {probe(model.encoder_q, centres):.3f}")


if __name__ == "__main__":
    main()
