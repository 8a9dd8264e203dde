"""Focal loss for dense prediction, with optional class weights; 2-D and 4-D logits."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class FocalLoss(nn.Module):
    """FL(p_t) = -alpha_t (1 - p_t)^gamma log(p_t), for classification and segmentation."""

    def __init__(self, gamma=2.0, alpha=None, reduction="mean"):
        super().__init__()
        self.gamma = gamma
        self.reduction = reduction
        if isinstance(alpha, (list, tuple)):
            alpha = torch.tensor(alpha)
        self.alpha = alpha

    @staticmethod
    def _rows(logits, target):
        if logits.dim() > 2:
            logits = logits.flatten(2).transpose(1, 2).reshape(-1, logits.shape[1])
        return logits, target.reshape(-1, 1)

    def forward(self, logits, target):
        logits, target = self._rows(logits, target)
        logpt = F.log_softmax(logits, dim=1)
        logpt = logpt.gather(1, target).view(-1)
        pt = logpt.data.exp()
        if self.alpha is not None:
            at = self.alpha.to(logits.dtype).gather(0, target.view(-1))
            logpt = logpt * at
        loss = -1 * (1 - pt) ** self.gamma * logpt
        if self.reduction == "mean":
            return loss.mean()
        if self.reduction == "sum":
            return loss.sum()
        return loss


class SegmentationCriterion(nn.Module):
    """Focal loss of the main logits plus a weighted one of an auxiliary head."""

    def __init__(self, gamma=2.0, alpha=(0.2, 0.5, 0.3), aux_weight=0.4):
        super().__init__()
        self.main = FocalLoss(gamma, alpha)
        self.aux = FocalLoss(gamma, alpha)
        self.aux_weight = aux_weight

    def forward(self, outputs, target):
        logits, aux_logits = outputs
        return self.main(logits, target) + self.aux_weight * self.aux(aux_logits, target)


LABELS = torch.tensor([[[0, 1], [2, 1]], [[2, 2], [0, 1]]])


def target(logits, aux_logits):
    return SegmentationCriterion()((logits, aux_logits), LABELS)


def make_inputs():
    g = torch.Generator().manual_seed(12)
    logits = torch.randn(2, 3, 2, 2, generator=g, dtype=torch.double).requires_grad_()
    aux_logits = torch.randn(2, 3, 2, 2, generator=g, dtype=torch.double).requires_grad_()
    return logits, aux_logits


def main():
    logits, aux_logits = make_inputs()
    loss = target(logits, aux_logits)
    loss.backward()
    print(f"loss {loss.item():.5f}, gradient norm {logits.grad.norm().item():.5f}")
    return logits.grad


if __name__ == "__main__":
    main()
