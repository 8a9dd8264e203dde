import torch
import torch.nn as nn
import torch.nn.functional as F

LATENT_DIM, NUM_CODES, OBS_DIM, BETA = 6, 16, 20, 0.25


class VectorQuantizer(nn.Module):
    def __init__(self, num_codes, dim):
        super().__init__()
        self.codebook = nn.Embedding(num_codes, dim)
        nn.init.uniform_(self.codebook.weight, -1.0, 1.0)

    def forward(self, x):
        d = torch.cdist(x, self.codebook.weight)
        indices = d.argmin(dim=-1)
        z = self.codebook(indices)
        z_q = x + (z - x).detach()
        return z_q, z, x, indices


class MLP(nn.Sequential):
    def __init__(self, *sizes):
        layers = []
        for a, b in zip(sizes[:-1], sizes[1:]):
            layers += [nn.Linear(a, b), nn.GELU()]
        super().__init__(*layers[:-1])


class LatentActionModel(nn.Module):
    """Infers a discrete latent action from two frames and predicts the second frame from it."""

    def __init__(self):
        super().__init__()
        self.encoder = nn.Sequential(MLP(2 * OBS_DIM, 64, LATENT_DIM), nn.LayerNorm(LATENT_DIM, elementwise_affine=False))
        self.vq = VectorQuantizer(NUM_CODES, LATENT_DIM)
        self.decoder = MLP(OBS_DIM + LATENT_DIM, 64, OBS_DIM)

    def encode(self, frame, next_frame):
        z_e = self.encoder(torch.cat([frame, next_frame], dim=-1))
        z_q, _, _, indices = self.vq(z_e)
        return {"z_e": z_e, "z_q": z_q, "indices": indices}

    def forward(self, batch):
        out = self.encode(batch["frame"], batch["next_frame"])
        out["recon"] = batch["frame"] + self.decoder(torch.cat([batch["frame"], out["z_q"]], dim=-1))
        return out

    def training_losses(self, batch):
        out = self(batch)
        z_q, z_e = out["z_q"], out["z_e"]
        losses = {
            "recon": F.mse_loss(out["recon"], batch["next_frame"]),
            "codebook": F.mse_loss(z_q, z_e.detach()),
            "commit": BETA * F.mse_loss(z_e, z_q.detach()),
        }
        losses["total"] = sum(losses.values())
        return losses, out


class Dynamics:
    def __init__(self, n_actions=6):
        g = torch.Generator().manual_seed(0)
        self.moves = torch.randn(n_actions, OBS_DIM, generator=g)

    def batch(self, n):
        frame = torch.randn(n, OBS_DIM)
        action = torch.randint(0, len(self.moves), (n,))
        return {"frame": frame, "next_frame": frame + self.moves[action] + 0.05 * torch.randn(n, OBS_DIM)}


class Trainer:
    def __init__(self, model, steps, lr=3e-3, warmup=20):
        self.model, self.steps = model, steps
        decay = [p for p in model.parameters() if p.ndim > 1]
        other = [p for p in model.parameters() if p.ndim <= 1]
        self.optimizer = torch.optim.AdamW([{"params": decay, "weight_decay": 0.0}, {"params": other, "weight_decay": 0.0}], lr=lr)
        self.scheduler = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda s: min(1.0, (s + 1) / warmup))
        self.data = Dynamics()

    def fit(self):
        for step in range(self.steps):
            self.model.train()
            losses, _ = self.model.training_losses(self.data.batch(128))
            self.optimizer.zero_grad(set_to_none=True)
            losses["total"].backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.scheduler.step()
            if (step + 1) % 100 == 0:
                print(f"step {step + 1}  " + "  ".join(f"{k} {v.item():.4f}" for k, v in losses.items()))
        return self.validate()

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        losses, out = self.model.training_losses(self.data.batch(512))
        return {"recon": losses["recon"].item(), "codes_used": out["indices"].unique().numel()}


def main():
    torch.manual_seed(17)
    model = LatentActionModel()
    start = model.vq.codebook.weight.detach().clone()
    result = Trainer(model, steps=300).fit()
    result["codebook_moved"] = (model.vq.codebook.weight - start).norm().item()
    return result


if __name__ == "__main__":
    main()
