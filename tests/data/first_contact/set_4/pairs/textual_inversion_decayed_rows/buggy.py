"""Textual inversion: learn the embedding of one new token through a frozen conditional denoiser."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class TIArgs:
    vocab: int = 32
    emb_dim: int = 12
    latent_dim: int = 8
    pretrain_steps: int = 200
    max_train_steps: int = 300
    batch_size: int = 32
    learning_rate: float = 5e-3
    adam_weight_decay: float = 1e-2
    gradient_accumulation_steps: int = 2
    seed: int = 14


class TextEncoder(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, dim)
        self.proj = nn.Linear(dim, dim)

    def resize_token_embeddings(self, n):
        old = self.token_embedding
        self.token_embedding = nn.Embedding(n, old.embedding_dim)
        self.token_embedding.weight.data[: old.num_embeddings] = old.weight.data

    def forward(self, ids):
        return self.proj(self.token_embedding(ids)).mean(1)


class Denoiser(nn.Module):
    def __init__(self, latent, cond, hidden=48):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(latent + cond + 1, hidden), nn.SiLU(), nn.Linear(hidden, latent))

    def forward(self, x, t, cond):
        return self.net(torch.cat([x, t, cond], -1))


class Concepts:
    def __init__(self, args, gen):
        self.args, self.gen = args, gen
        self.table = torch.randn(args.vocab + 1, args.latent_dim, generator=gen)

    def batch(self, new_token=None):
        a, n = self.args, self.args.batch_size
        ids = torch.randint(0, a.vocab, (n, 3), generator=self.gen)
        if new_token is not None:
            ids[:, 1] = new_token
        latents = self.table[ids].mean(1) + 0.1 * torch.randn(n, a.latent_dim, generator=self.gen)
        return ids, latents


def diffusion_loss(unet, text_encoder, ids, latents, gen):
    noise = torch.randn(latents.shape, generator=gen)
    t = torch.rand(len(latents), 1, generator=gen)
    noisy = (1 - t) * latents + t * noise
    return F.mse_loss(unet(noisy, t, text_encoder(ids)), noise - latents)


def pretrain(args, data, gen):
    text_encoder = TextEncoder(args.vocab, args.emb_dim)
    unet = Denoiser(args.latent_dim, args.emb_dim)
    params = [*text_encoder.parameters(), *unet.parameters()]
    optimizer = torch.optim.Adam(params, lr=3e-3)
    for _ in range(args.pretrain_steps):
        loss = diffusion_loss(unet, text_encoder, *data.batch(), gen)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return text_encoder, unet


def freeze_params(params):
    for p in params:
        p.requires_grad = False


def train_token(args, text_encoder, unet, data, gen):
    placeholder_id = args.vocab
    text_encoder.resize_token_embeddings(args.vocab + 1)
    embeddings = text_encoder.token_embedding.weight
    embeddings.data[placeholder_id] = embeddings.data[3]
    freeze_params(unet.parameters())
    freeze_params(text_encoder.proj.parameters())
    orig_embeds = embeddings.detach().clone()
    optimizer = torch.optim.AdamW(text_encoder.token_embedding.parameters(), lr=args.learning_rate,
                                  weight_decay=args.adam_weight_decay)
    lr_scheduler = torch.optim.lr_scheduler.ConstantLR(optimizer, factor=0.5, total_iters=20)
    index_grads_to_zero = torch.arange(args.vocab + 1) != placeholder_id
    for step in range(args.max_train_steps):
        total = 0.0
        for _ in range(args.gradient_accumulation_steps):
            loss = diffusion_loss(unet, text_encoder, *data.batch(placeholder_id), gen)
            (loss / args.gradient_accumulation_steps).backward()
            total += loss.item() / args.gradient_accumulation_steps
        embeddings.grad[index_grads_to_zero] = 0
        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        if step % 100 == 0:
            print(f"step {step} loss {total:.4f}")
    others = (embeddings.detach() - orig_embeds)[index_grads_to_zero].norm().item()
    return total, others


def main():
    args = TIArgs()
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    data = Concepts(args, gen)
    text_encoder, unet = pretrain(args, data, gen)
    loss, others = train_token(args, text_encoder, unet, data, gen)
    result = {"loss": round(loss, 4), "other_rows_moved": round(others, 4)}
    print(result)
    return result


if __name__ == "__main__":
    main()
