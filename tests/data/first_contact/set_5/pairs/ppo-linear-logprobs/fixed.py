"""Log-probabilities of chosen tokens without keeping the logits: projection and log-softmax in chunks."""
import torch
import torch.nn as nn

CHUNK = 16
TEMPERATURE = 0.9


def _chunk_forward(hidden, weight, ids):
    logits = (hidden @ weight.t()) / TEMPERATURE
    logp = logits.log_softmax(-1)
    return logp.gather(-1, ids.unsqueeze(-1)).squeeze(-1)


def _chunk_backward(dlogp, hidden, weight, ids):
    logits = (hidden @ weight.t()) / TEMPERATURE
    probs = logits.softmax(-1)
    dlogits = -probs * dlogp.unsqueeze(-1)
    dlogits.scatter_add_(-1, ids.unsqueeze(-1), dlogp.unsqueeze(-1))
    dlogits = dlogits / TEMPERATURE
    return dlogits @ weight, dlogits.t() @ hidden


class LinearLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(ctx, hidden_states, vocab_weights, input_ids):
        shape = hidden_states.shape
        hidden_states = hidden_states.flatten(0, -2)
        input_ids = input_ids.flatten()
        out = hidden_states.new_empty(hidden_states.shape[0])
        for start in range(0, out.numel(), CHUNK):
            part = slice(start, start + CHUNK)
            out[part] = _chunk_forward(hidden_states[part], vocab_weights, input_ids[part])
        ctx.save_for_backward(hidden_states, vocab_weights, input_ids)
        ctx.shape = shape
        return out.view(shape[:-1])

    @staticmethod
    def backward(ctx, dlogp):
        hidden_states, vocab_weights, input_ids = ctx.saved_tensors
        dlogp = dlogp.flatten()
        dhidden = dweight = None
        if ctx.needs_input_grad[0]:
            dhidden = torch.zeros_like(hidden_states)
        if vocab_weights.requires_grad:
            dweight = torch.zeros_like(vocab_weights)
        for start in range(0, dlogp.numel(), CHUNK):
            part = slice(start, start + CHUNK)
            dh, dw = _chunk_backward(dlogp[part], hidden_states[part], vocab_weights, input_ids[part])
            if dhidden is not None:
                dhidden[part] += dh
            if dweight is not None:
                dweight += dw
        if dhidden is not None:
            dhidden = dhidden.view(ctx.shape)
        return dhidden, dweight, None


def target(hidden_states, vocab_weights):
    b, t, _ = hidden_states.shape
    ids = (torch.arange(b * t) * 3 % vocab_weights.shape[0]).view(b, t)
    return LinearLogProbs.apply(hidden_states, vocab_weights, ids)


def make_inputs():
    g = torch.Generator().manual_seed(0)
    hidden = torch.randn(9, 2, 4, generator=g, dtype=torch.double).transpose(0, 1).requires_grad_()
    weight = torch.randn(7, 4, generator=g, dtype=torch.double, requires_grad=True)
    return hidden, weight


class TinyPolicy(nn.Module):
    def __init__(self, vocab=11, dim=16):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = nn.GRU(dim, dim, batch_first=True)
        self.lm_head = nn.Linear(dim, vocab, bias=False)

    def forward(self, ids):
        hidden, _ = self.rnn(self.embed(ids[:, :-1]))
        return LinearLogProbs.apply(hidden, self.lm_head.weight, ids[:, 1:])


def main():
    torch.manual_seed(0)
    policy = TinyPolicy()
    optimizer = torch.optim.Adam(policy.parameters(), lr=3e-3)
    ids = torch.randint(11, (8, 12))
    with torch.no_grad():
        old = policy(ids)
    advantages = torch.randn(8, 1)
    for _ in range(4):
        ratio = (policy(ids) - old).exp()
        surrogate = torch.min(ratio * advantages, ratio.clamp(0.8, 1.2) * advantages)
        loss = -surrogate.mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print("loss", round(loss.item(), 4))
    return policy


if __name__ == "__main__":
    main()
