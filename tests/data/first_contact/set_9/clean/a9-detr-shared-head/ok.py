import torch
import torch.nn.functional as F
from torch import nn


def inverse_sigmoid(x, eps=1e-4):
    x = x.clamp(0, 1)
    return torch.log(x.clamp(min=eps) / (1 - x).clamp(min=eps))


class MLP(nn.Module):
    def __init__(self, dims):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(a, b) for a, b in zip(dims, dims[1:])])

    def forward(self, x):
        for i, layer in enumerate(self.layers):
            x = layer(x) if i == len(self.layers) - 1 else F.relu(layer(x))
        return x


class DecoderLayer(nn.Module):
    def __init__(self, d, heads=4):
        super().__init__()
        self.anchor = nn.Linear(4, d)
        self.self_attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.cross_attn = nn.MultiheadAttention(d, heads, batch_first=True)
        self.ffn = nn.Sequential(nn.Linear(d, 2 * d), nn.ReLU(), nn.Linear(2 * d, d))
        self.norms = nn.ModuleList([nn.LayerNorm(d) for _ in range(3)])

    def forward(self, tgt, memory, reference):
        q = tgt + self.anchor(reference)
        tgt = self.norms[0](tgt + self.self_attn(q, q, tgt, need_weights=False)[0])
        q = tgt + self.anchor(reference)
        tgt = self.norms[1](tgt + self.cross_attn(q, memory, memory, need_weights=False)[0])
        return self.norms[2](tgt + self.ffn(tgt))


class Detector(nn.Module):
    def __init__(self, d=32, num_layers=3, queries=4, classes=3, bbox_embed_diff_each_layer=False):
        super().__init__()
        self.backbone = nn.Sequential(nn.Conv2d(1, d, 4, 4), nn.ReLU(), nn.Conv2d(d, d, 1))
        self.pos = nn.Parameter(torch.randn(16, d) * 0.1)
        self.query = nn.Embedding(queries, d)
        self.refpoint = nn.Embedding(queries, 4)
        self.layers = nn.ModuleList([DecoderLayer(d) for _ in range(num_layers)])
        if bbox_embed_diff_each_layer:
            self.bbox_embed = nn.ModuleList([MLP([d, d, 4]) for _ in range(num_layers)])
            self.class_embed = nn.ModuleList([nn.Linear(d, classes + 1) for _ in range(num_layers)])
        else:
            bbox_embed, class_embed = MLP([d, d, 4]), nn.Linear(d, classes + 1)
            self.bbox_embed = nn.ModuleList([bbox_embed for _ in range(num_layers)])
            self.class_embed = nn.ModuleList([class_embed for _ in range(num_layers)])
        for head in self.bbox_embed:
            nn.init.zeros_(head.layers[-1].weight)
            nn.init.zeros_(head.layers[-1].bias)

    def forward(self, images):
        b = images.shape[0]
        memory = self.backbone(images).flatten(2).transpose(1, 2) + self.pos
        tgt = self.query.weight.unsqueeze(0).expand(b, -1, -1)
        reference = self.refpoint.weight.sigmoid().unsqueeze(0).expand(b, -1, -1)
        outputs = []
        for layer, box_head, class_head in zip(self.layers, self.bbox_embed, self.class_embed):
            tgt = layer(tgt, memory, reference)
            refined = (box_head(tgt) + inverse_sigmoid(reference)).sigmoid()
            outputs.append({"boxes": refined, "logits": class_head(tgt)})
            reference = refined.detach()
        return outputs


class SetCriterion:
    def __init__(self, classes, empty_weight=0.3):
        self.classes = classes
        self.weight = torch.ones(classes + 1)
        self.weight[-1] = empty_weight

    @torch.no_grad()
    def match(self, out, labels, boxes):
        prob = out["logits"].softmax(-1)
        cost = (out["boxes"] - boxes[:, None]).abs().sum(-1)
        cost = cost - prob.gather(2, labels[:, None, None].expand(-1, prob.shape[1], 1)).squeeze(-1)
        return cost.argmin(dim=1)

    def __call__(self, outputs, labels, boxes):
        total = 0.0
        rows = torch.arange(len(labels))
        for out in outputs:
            index = self.match(out, labels, boxes)
            goal = torch.full(out["logits"].shape[:2], self.classes)
            goal[rows, index] = labels
            ce = F.cross_entropy(out["logits"].transpose(1, 2), goal, self.weight)
            total = total + ce + 5.0 * F.l1_loss(out["boxes"][rows, index], boxes)
        return total / len(outputs)


def scenes(n, generator):
    labels = torch.randint(0, 3, (n,), generator=generator)
    cx = torch.randint(3, 13, (n,), generator=generator)
    cy = torch.randint(3, 13, (n,), generator=generator)
    images = 0.1 * torch.randn(n, 1, 16, 16, generator=generator)
    for i in range(n):
        images[i, 0, cy[i] - 2 : cy[i] + 2, cx[i] - 2 : cx[i] + 2] += 1.0 + labels[i]
    boxes = torch.stack([cx / 16, cy / 16, torch.full((n,), 0.25), torch.full((n,), 0.25)], dim=1)
    return images, labels, boxes


def main():
    torch.manual_seed(12)
    gen = torch.Generator().manual_seed(12)
    model, criterion = Detector(), SetCriterion(3)
    groups = [
        {"params": [p for n, p in model.named_parameters() if not n.startswith("backbone")]},
        {"params": model.backbone.parameters(), "lr": 1e-3},
    ]
    optimizer = torch.optim.AdamW(groups, lr=2e-3, weight_decay=1e-4)
    for step in range(1, 61):
        images, labels, boxes = scenes(16, gen)
        loss = criterion(model(images), labels, boxes)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        if step % 20 == 0:
            print(step, round(loss.item(), 4))


if __name__ == "__main__":
    main()
