"""Visual-semantic embedding: images and captions in one space, trained with a margin ranking loss."""
from types import SimpleNamespace

import torch
import torch.nn.functional as F
from torch import nn


class EncoderImage(nn.Module):
    def __init__(self, img_dim, embed_size):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(img_dim, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.2), nn.Linear(64, embed_size)
        )

    def forward(self, images):
        return F.normalize(self.net(images), dim=1)


class EncoderText(nn.Module):
    def __init__(self, vocab_size, word_dim, embed_size):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, word_dim)
        self.dropout = nn.Dropout(0.1)
        self.rnn = nn.GRU(word_dim, embed_size, batch_first=True)

    def forward(self, captions):
        _, last = self.rnn(self.dropout(self.embed(captions)))
        return F.normalize(last[0], dim=1)


class ContrastiveLoss(nn.Module):
    def __init__(self, margin=0.2, max_violation=False):
        super().__init__()
        self.margin = margin
        self.max_violation = max_violation

    def forward(self, im, s):
        scores = im @ s.t()
        diagonal = scores.diag().view(-1, 1)
        cost_s = (self.margin + scores - diagonal).clamp(min=0)
        cost_im = (self.margin + scores - diagonal.t()).clamp(min=0)
        eye = torch.eye(len(scores), dtype=torch.bool)
        cost_s, cost_im = cost_s.masked_fill(eye, 0), cost_im.masked_fill(eye, 0)
        if self.max_violation:
            return cost_s.amax(1).mean() + cost_im.amax(0).mean()
        return cost_s.mean() + cost_im.mean()


class VSE:
    def __init__(self, opt):
        self.grad_clip = opt.grad_clip
        self.img_enc = EncoderImage(opt.img_dim, opt.embed_size)
        self.txt_enc = EncoderText(opt.vocab_size, opt.word_dim, opt.embed_size)
        self.criterion = ContrastiveLoss(opt.margin)
        self.params = [*self.img_enc.parameters(), *self.txt_enc.parameters()]
        self.optimizer = torch.optim.Adam(self.params, lr=opt.learning_rate)
        self.Eiters = 0

    def train_start(self):
        self.img_enc.train()
        self.txt_enc.train()

    def val_start(self):
        self.img_enc.eval()
        self.txt_enc.eval()

    def forward_emb(self, images, captions):
        return self.img_enc(images), self.txt_enc(captions)

    def train_emb(self, images, captions):
        self.Eiters += 1
        im, s = self.forward_emb(images, captions)
        loss = self.criterion(im, s)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.params, self.grad_clip)
        self.optimizer.step()
        return loss.item()


def make_pairs(n, opt, seed):
    world = torch.Generator().manual_seed(0)
    words = torch.randn(opt.vocab_size, 6, generator=world)
    to_image = torch.randn(6, opt.img_dim, generator=world)
    g = torch.Generator().manual_seed(seed)
    captions = torch.randint(0, opt.vocab_size, (n, 6), generator=g)
    images = words[captions].mean(1) @ to_image + 0.4 * torch.randn(n, opt.img_dim, generator=g)
    return images, captions


@torch.no_grad()
def validate(val_set, model):
    model.val_start()
    im, s = model.forward_emb(*val_set)
    ranks = (im @ s.t()).argsort(1, descending=True)
    truth = torch.arange(len(im)).unsqueeze(1)
    position = (ranks == truth).float().argmax(1)
    r1, r10 = (position < 1).float().mean().item(), (position < 10).float().mean().item()
    print(f"iter {model.Eiters} r1 {r1:.3f} r10 {r10:.3f}")
    return r1 + r10


def train(opt, train_set, model, val_set):
    model.train_start()
    images, captions = train_set
    for index in torch.randperm(len(images)).split(opt.batch_size):
        model.train_emb(images[index], captions[index])
        if model.Eiters % opt.val_step == 0:
            validate(val_set, model)
            model.train_start()


def main():
    opt = SimpleNamespace(
        img_dim=24, vocab_size=50, word_dim=24, embed_size=32, margin=0.2, grad_clip=2.0, learning_rate=3e-3,
        num_epochs=16, batch_size=32, val_step=3, seed=0,
    )
    torch.manual_seed(opt.seed)
    train_set, val_set = make_pairs(320, opt, 1), make_pairs(120, opt, 2)
    model = VSE(opt)
    best = 0.0
    for epoch in range(opt.num_epochs):
        train(opt, train_set, model, val_set)
        best = max(best, validate(val_set, model))
    print(f"best rsum {best:.3f}")
    return model


if __name__ == "__main__":
    main()
