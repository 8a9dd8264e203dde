import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.autograd import Function

PAD, BOS = 0, 1


def _threshold_and_support(scores, dim):
    top, _ = torch.sort(scores, descending=True, dim=dim)
    cumulative = top.cumsum(dim) - 1
    shape = [1] * scores.dim()
    shape[dim] = -1
    rank = torch.arange(1, scores.size(dim) + 1, dtype=scores.dtype, device=scores.device).view(shape)
    support = (rank * top > cumulative).sum(dim=dim, keepdim=True)
    tau = cumulative.gather(dim, support - 1) / support.to(scores.dtype)
    return tau, support


class SparsemaxFunction(Function):
    @staticmethod
    def forward(ctx, scores, dim=-1):
        ctx.dim = dim
        shifted = scores - scores.max(dim=dim, keepdim=True).values
        tau, support = _threshold_and_support(shifted, dim)
        output = torch.clamp(shifted - tau, min=0)
        ctx.save_for_backward(support, output)
        return output

    @staticmethod
    def backward(ctx, grad_output):
        support, output = ctx.saved_tensors
        dim = ctx.dim
        active = output > 0
        grad_input = torch.where(active, grad_output, torch.zeros_like(grad_output))
        mean_grad = grad_input.sum(dim=dim) / support.to(output.dtype).squeeze()
        return torch.where(active, grad_input - mean_grad.unsqueeze(dim), grad_input), None


def sparsemax(scores, dim=-1):
    return SparsemaxFunction.apply(scores, dim)


class SparseAttention(nn.Module):
    def __init__(self, hidden):
        super().__init__()
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, hidden, bias=False)

    def forward(self, state, memory, lengths):
        scores = self.query(state).unsqueeze(1) @ self.key(memory).transpose(1, 2)
        positions = torch.arange(memory.size(1), device=memory.device)
        scores = scores.masked_fill(positions >= lengths.view(-1, 1, 1), -1e4)
        weights = sparsemax(scores, dim=-1)
        return (weights @ memory).squeeze(1), weights.squeeze(1)


class Seq2Seq(nn.Module):
    def __init__(self, vocab, hidden=32):
        super().__init__()
        self.embed = nn.Embedding(vocab, hidden, padding_idx=PAD)
        self.encoder = nn.GRU(hidden, hidden // 2, batch_first=True, bidirectional=True)
        self.cell = nn.GRUCell(2 * hidden, hidden)
        self.attention = SparseAttention(hidden)
        self.init_state = nn.Linear(hidden, hidden)
        self.readout = nn.Linear(2 * hidden, vocab)

    def forward(self, src, lengths, tgt_in):
        memory, _ = self.encoder(self.embed(src))
        state = torch.tanh(self.init_state(memory.mean(1)))
        context = torch.zeros_like(state)
        logits, maps = [], []
        for t in range(tgt_in.size(1)):
            state = self.cell(torch.cat([self.embed(tgt_in[:, t]), context], -1), state)
            context, weights = self.attention(state, memory, lengths)
            logits.append(self.readout(torch.cat([state, context], -1)))
            maps.append(weights)
        return torch.stack(logits, 1), torch.stack(maps, 1)


def reversal_batch(batch_size, vocab, max_len, generator):
    lengths = torch.randint(max_len - 3, max_len + 1, (batch_size,), generator=generator)
    src = torch.randint(2, vocab, (batch_size, max_len), generator=generator)
    positions = torch.arange(max_len)
    src = src.masked_fill(positions >= lengths[:, None], PAD)
    index = (lengths[:, None] - 1 - positions).clamp(min=0)
    tgt = src.gather(1, index).masked_fill(positions >= lengths[:, None], PAD)
    tgt_in = torch.cat([torch.full((batch_size, 1), BOS), tgt[:, :-1]], 1)
    return src, lengths, tgt_in, tgt


def target(scores):
    return sparsemax(scores, dim=-1)


def make_inputs():
    gen = torch.Generator().manual_seed(4)
    return (torch.randn(2, 1, 4, generator=gen, dtype=torch.float64).requires_grad_(),)


def main():
    torch.manual_seed(21)
    vocab, max_len = 12, 7
    gen = torch.Generator().manual_seed(5)
    model = Seq2Seq(vocab)
    optimizer = torch.optim.Adam(model.parameters(), lr=5e-3)
    for step in range(1, 76):
        src, lengths, tgt_in, tgt = reversal_batch(32, vocab, max_len, gen)
        logits, maps = model(src, lengths, tgt_in)
        loss = F.cross_entropy(logits.flatten(0, 1), tgt.flatten(), ignore_index=PAD)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 5.0)
        optimizer.step()
        if step % 25 == 0:
            keep = tgt != PAD
            acc = (logits.argmax(-1) == tgt)[keep].float().mean().item()
            density = (maps > 0).float().sum(-1)[keep].mean().item()
            print(f"step {step:4d} loss {loss.item():.4f} acc {acc:.3f} attended {density:.2f}")


if __name__ == "__main__":
    main()
