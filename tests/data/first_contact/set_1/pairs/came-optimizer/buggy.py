"""Training a small regression net with a hand-written confidence-guided factored optimizer."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class CAME(torch.optim.Optimizer):
    def __init__(self, params, lr=1e-2, eps=(1e-16, 1e-16), clip_threshold=1.0, betas=(0.9, 0.99, 0.999), weight_decay=0.0):
        super().__init__(params, dict(lr=lr, eps=eps, clip_threshold=clip_threshold, betas=betas, weight_decay=weight_decay))

    @staticmethod
    def _rms(t):
        return t.norm(2) / (t.numel() ** 0.5)

    @staticmethod
    def _approx_sq_grad(row, col):
        r = (row / row.mean(dim=-1, keepdim=True)).rsqrt_().unsqueeze(-1)
        return r * col.unsqueeze(-2).rsqrt()

    def _init_state(self, state, grad, factored):
        state["step"] = 0
        state["exp_avg"] = torch.zeros_like(grad)
        if factored:
            for key in ("exp_avg_sq_row", "exp_avg_res_row"):
                state[key] = torch.zeros(grad.shape[:-1])
            for key in ("exp_avg_sq_col", "exp_avg_res_col"):
                state[key] = torch.zeros(grad.shape[:-2] + grad.shape[-1:])
        else:
            state["exp_avg_sq"] = torch.zeros_like(grad)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            b1, b2, b3 = group["betas"]
            for p in group["params"]:
                if p.grad is None:
                    continue
                grad, state = p.grad, self.state[p]
                factored = grad.dim() >= 2
                if not state:
                    self._init_state(state, grad, factored)
                state["step"] += 1
                update = grad ** 2 + group["eps"][0]
                if factored:
                    state["exp_avg_sq_row"].mul_(b2).add_(update.mean(dim=-1), alpha=1 - b2)
                    state["exp_avg_sq_col"].mul_(b2).add_(update.mean(dim=-2), alpha=1 - b2)
                    update = self._approx_sq_grad(state["exp_avg_sq_row"], state["exp_avg_sq_col"]).mul_(grad)
                else:
                    state["exp_avg_sq"].mul_(b2).add_(update, alpha=1 - b2)
                    update = state["exp_avg_sq"].rsqrt().mul_(grad)
                update.div_((self._rms(update) / group["clip_threshold"]).clamp_(min=1.0))
                exp_avg = state["exp_avg"]
                exp_avg.mul_(b1).add_(update, alpha=1 - b1)
                if factored:
                    res = (update - exp_avg) ** 2 + group["eps"][1]
                    state["exp_avg_res_row"].mul_(b3).add_(res.mean(dim=-1), alpha=1 - b3)
                    state["exp_avg_res_col"].mul_(b3).add_(res.mean(dim=-2), alpha=1 - b3)
                    update = self._approx_sq_grad(state["exp_avg_res_row"], state["exp_avg_res_col"]).mul_(exp_avg).mul_(0.03)
                else:
                    update = exp_avg
                if group["weight_decay"] != 0:
                    p.mul_(1 - group["lr"] * group["weight_decay"])
                update.mul_(group["lr"])
                p.sub_(update)
        return loss


class Net(nn.Module):
    def __init__(self, d=6, hidden=32):
        super().__init__()
        self.inp = nn.Linear(d, hidden)
        self.norm = nn.LayerNorm(hidden)
        self.mid = nn.Linear(hidden, hidden)
        self.out = nn.Linear(hidden, 1)

    def forward(self, x):
        h = torch.tanh(self.norm(self.inp(x)))
        return self.out(h + torch.relu(self.mid(h))).squeeze(-1)


def make_data(n, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(n, 6, generator=g)
    return x, 5.0 + 2.0 * torch.sin(x[:, 0] * 2) + x[:, 1] * x[:, 2]


def main():
    torch.manual_seed(0)
    x, y = make_data(512, 1)
    xv, yv = make_data(256, 2)
    net = Net()
    bias0 = net.out.bias.detach().clone()
    opt = CAME(net.parameters(), lr=2e-2, weight_decay=1e-3)
    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, 40, eta_min=1e-3)
    for epoch in range(40):
        net.train()
        for idx in torch.randperm(len(x)).split(64):
            opt.zero_grad()
            loss = F.mse_loss(net(x[idx]), y[idx])
            loss.backward()
            opt.step()
        sched.step()
        if epoch % 10 == 9:
            net.eval()
            with torch.no_grad():
                print(f"epoch {epoch + 1}: train {loss.item():.4f} val {F.mse_loss(net(xv), yv).item():.4f}")
    with torch.no_grad():
        val = F.mse_loss(net(xv), yv).item()
    momentum = opt.state[net.out.bias]["exp_avg"].abs().mean().item()
    return {"val": val, "out_bias_moved": (net.out.bias - bias0).abs().item(), "bias_momentum": momentum}


if __name__ == "__main__":
    main()
