import torch


class DampedSGD(torch.optim.Optimizer):
    def __init__(self, params, lr):
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                previous = state.get("previous", torch.zeros_like(p))
                damping = torch.sigmoid((previous - p.grad).abs())
                state["previous"] = p.grad  # GCS111
                p.add_(damping * p.grad, alpha=-group["lr"])


def train(model, optimizer, x, y):
    optimizer.zero_grad(set_to_none=False)
    torch.nn.functional.mse_loss(model(x), y).backward()
    optimizer.step()
