"""Learns the embedding of one new placeholder token; everything else of the text encoder stays as it is."""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F


@dataclass
class Args:
    vocab: int = 30
    dim: int = 24
    max_train_steps: int = 80
    train_batch_size: int = 6
    gradient_accumulation_steps: int = 1
    learning_rate: float = 2e-2
    lr_warmup_steps: int = 5
    adam_beta1: float = 0.9
    adam_beta2: float = 0.999
    adam_weight_decay: float = 1e-2
    adam_epsilon: float = 1e-8
    initializer_id: int = 4
    seed: int = 17


class TextEncoder(nn.Module):
    def __init__(self, vocab, dim):
        super().__init__()
        self.token_embedding = nn.Embedding(vocab, dim)
        self.position = nn.Parameter(torch.randn(8, dim) * 0.1)
        self.layer = nn.TransformerEncoderLayer(dim, 2, 2 * dim, dropout=0.0, batch_first=True)
        self.final_norm = nn.LayerNorm(dim)

    def get_input_embeddings(self):
        return self.token_embedding

    def resize_token_embeddings(self, size):
        old = self.token_embedding.weight.data
        self.token_embedding = nn.Embedding(size, old.size(1))
        self.token_embedding.weight.data[:old.size(0)] = old
        return self.token_embedding

    def forward(self, ids):
        x = self.token_embedding(ids) + self.position[:ids.size(1)]
        return self.final_norm(self.layer(x)).mean(dim=1)


class ImageDecoder(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(dim, 48), nn.GELU(), nn.Linear(48, 16))

    def forward(self, condition):
        return self.net(condition)


def freeze_params(params):
    for p in params:
        p.requires_grad = False


def prompts(args, token_id, gen):
    ids = torch.randint(5, args.vocab, (args.train_batch_size, 6), generator=gen)
    ids[:, 3] = token_id
    return ids


def main():
    args = Args()
    torch.manual_seed(args.seed)
    gen = torch.Generator().manual_seed(args.seed)
    text_encoder, decoder = TextEncoder(args.vocab, args.dim), ImageDecoder(args.dim)
    concept = torch.randn(16, generator=gen) * 0.3

    placeholder_token_id = args.vocab
    text_encoder.resize_token_embeddings(args.vocab + 1)
    token_embeds = text_encoder.get_input_embeddings().weight.data
    token_embeds[placeholder_token_id] = token_embeds[args.initializer_id]
    before = token_embeds.clone()

    freeze_params(decoder.parameters())
    freeze_params(text_encoder.layer.parameters())
    freeze_params(text_encoder.final_norm.parameters())
    text_encoder.position.requires_grad = False

    optimizer = torch.optim.AdamW(
        text_encoder.get_input_embeddings().parameters(),
        lr=args.learning_rate,
        betas=(args.adam_beta1, args.adam_beta2),
        weight_decay=args.adam_weight_decay,
        eps=args.adam_epsilon,
    )
    lr_scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda s: min(1.0, (s + 1) / args.lr_warmup_steps))

    decoder.eval()
    for step in range(args.max_train_steps):
        text_encoder.train()
        target = concept + 0.1 * torch.randn(args.train_batch_size, 16, generator=gen)
        loss = F.mse_loss(decoder(text_encoder(prompts(args, placeholder_token_id, gen))), target)
        loss.backward()

        grads = text_encoder.get_input_embeddings().weight.grad
        index_grads_to_zero = torch.arange(args.vocab + 1) != placeholder_token_id
        grads.data[index_grads_to_zero, :] = grads.data[index_grads_to_zero, :].fill_(0)

        optimizer.step()
        lr_scheduler.step()
        optimizer.zero_grad()
        if step % 20 == 0 or step == args.max_train_steps - 1:
            print(f"step {step} loss {loss.item():.4f} lr {lr_scheduler.get_last_lr()[0]:.4f}")

    learned = text_encoder.get_input_embeddings().weight.detach()
    return {"initial": before, "final": learned, "loss": loss.item()}


if __name__ == "__main__":
    main()
