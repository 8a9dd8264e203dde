"""Clone and retrain small networks, each by a trainer of its own that is garbage afterwards.

Prints the CPU seconds of so many rounds, bare and audited, and what the audit says; a compiler is
imported, so that the process has some hundred thousand objects.
"""

from __future__ import annotations

import copy
import json
import sys
import time

import torch
import torch._dynamo
from torch import nn
from torch.nn import functional as F  # noqa: N812 - as everybody writes it

import gradcheck_suite as gs

NETWORKS = 8
STEPS = 3


class Trainer:
    def __init__(self, net):
        self.net = net
        self.optimizer = torch.optim.SGD(net.parameters(), lr=0.05)
        # A cycle, which keeps the last loss with its graph until garbage is collected.
        self.closure = self.step

    def step(self):
        self.optimizer.zero_grad()
        self.loss = F.mse_loss(self.net(torch.randn(8, 16)), torch.zeros(8, 4))
        self.loss.backward()
        self.optimizer.step()


def retrain(rounds):
    nets = [nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4)) for _ in range(NETWORKS)]
    for _ in range(rounds):
        nets = [copy.deepcopy(net) for net in nets]
        for net in nets:
            trainer = Trainer(net)
            for _ in range(STEPS):
                trainer.closure()


def seconds_of(rounds):
    began = time.process_time()
    retrain(rounds)
    return time.process_time() - began


if __name__ == "__main__":
    torch.set_num_threads(1)
    rounds = int(sys.argv[1])
    seconds_of(5)
    bare = seconds_of(rounds)
    with gs.audit() as session:
        audited = seconds_of(rounds)
    told = {
        "bare": bare,
        "audited": audited,
        "findings": [finding.message for finding in session.findings],
        "not_covered": session.report.not_covered,
    }
    sys.stdout.write(json.dumps(told))
