import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

UPDATE_GLOBAL_ITER = 5
GAMMA = 0.9
MAX_EP = 40
N_S, N_A = 3, 2


def v_wrap(np_array, dtype=np.float32):
    if np_array.dtype != dtype:
        np_array = np_array.astype(dtype)
    return torch.from_numpy(np_array)


def set_init(layers):
    for layer in layers:
        nn.init.normal_(layer.weight, mean=0.0, std=0.1)
        nn.init.constant_(layer.bias, 0.0)


class SharedAdam(torch.optim.Adam):
    def __init__(self, params, lr=1e-3, betas=(0.9, 0.99), eps=1e-8, weight_decay=0):
        super().__init__(params, lr=lr, betas=betas, eps=eps, weight_decay=weight_decay)
        for group in self.param_groups:
            for p in group["params"]:
                state = self.state[p]
                state["step"] = torch.zeros(1)
                state["exp_avg"] = torch.zeros_like(p.data).share_memory_()
                state["exp_avg_sq"] = torch.zeros_like(p.data).share_memory_()


class Pole:
    def __init__(self, seed):
        self.rng = np.random.RandomState(seed)

    def reset(self):
        self.x = self.rng.uniform(-0.05, 0.05, 2)
        self.t = 0
        return self._obs()

    def _obs(self):
        return np.array([self.x[0], self.x[1], self.x[0] * self.x[1]])

    def step(self, a):
        force = 0.6 if a == 1 else -0.6
        self.x[1] += 0.1 * (np.sin(2 * self.x[0]) * 3 + force + self.rng.randn() * 0.05)
        self.x[0] += 0.1 * self.x[1]
        self.t += 1
        fail = abs(self.x[0]) > 0.6
        return self._obs(), (-1.0 if fail else 0.1), fail or self.t >= 60


class Net(nn.Module):
    def __init__(self, s_dim, a_dim):
        super().__init__()
        self.pi1, self.pi2 = nn.Linear(s_dim, 32), nn.Linear(32, a_dim)
        self.v1, self.v2 = nn.Linear(s_dim, 32), nn.Linear(32, 1)
        set_init([self.pi1, self.pi2, self.v1, self.v2])

    def forward(self, x):
        return self.pi2(torch.tanh(self.pi1(x))), self.v2(torch.tanh(self.v1(x)))

    @torch.no_grad()
    def choose_action(self, s):
        logits, _ = self.forward(s)
        return torch.distributions.Categorical(logits=logits).sample().numpy()[0]

    def loss_func(self, s, a, v_t):
        logits, values = self.forward(s)
        td = v_t - values
        m = torch.distributions.Categorical(logits=logits)
        exp_v = m.log_prob(a) * td.detach().squeeze(1)
        return (td.pow(2).squeeze(1) - exp_v).mean()


def push_and_pull(opt, lnet, gnet, done, s_, bs, ba, br, gamma):
    v_s_ = 0.0
    if not done:
        with torch.no_grad():
            v_s_ = lnet(v_wrap(s_[None, :]))[-1].numpy()[0, 0]
    buffer_v_target = []
    for r in br[::-1]:
        v_s_ = r + gamma * v_s_
        buffer_v_target.append(v_s_)
    buffer_v_target.reverse()
    loss = lnet.loss_func(v_wrap(np.vstack(bs)), v_wrap(np.array(ba), np.int64), v_wrap(np.array(buffer_v_target)[:, None]))

    opt.zero_grad()
    loss.backward()
    norm = torch.stack([p.grad.norm() for p in lnet.parameters()]).norm().item()
    for lp, gp in zip(lnet.parameters(), gnet.parameters()):
        gp._grad = lp.grad
    opt.step()
    lnet.load_state_dict(gnet.state_dict())
    return loss.item(), norm


class Worker:
    def __init__(self, gnet, opt, name, seed):
        self.name, self.gnet, self.opt = name, gnet, opt
        self.lnet = Net(N_S, N_A)
        self.lnet.load_state_dict(gnet.state_dict())
        self.env = Pole(seed)
        self.norms, self.returns, self.loss = [], [], 0.0

    def run_episode(self):
        total_step, s, ep_r = 1, self.env.reset(), 0.0
        buffer_s, buffer_a, buffer_r = [], [], []
        while True:
            a = self.lnet.choose_action(v_wrap(s[None, :]))
            s_, r, done = self.env.step(a)
            ep_r += r
            buffer_a.append(a), buffer_s.append(s), buffer_r.append(r)
            if total_step % UPDATE_GLOBAL_ITER == 0 or done:
                self.loss, norm = push_and_pull(self.opt, self.lnet, self.gnet, done, s_, buffer_s, buffer_a, buffer_r, GAMMA)
                self.norms.append(norm)
                buffer_s, buffer_a, buffer_r = [], [], []
                if done:
                    self.returns.append(ep_r)
                    return
            s = s_
            total_step += 1


def main():
    torch.manual_seed(5)
    gnet = Net(N_S, N_A)
    gnet.share_memory()
    opt = SharedAdam(gnet.parameters(), lr=2e-3, betas=(0.92, 0.999))
    workers = [Worker(gnet, opt, f"w{i:02d}", seed=i) for i in range(2)]
    for ep in range(MAX_EP):
        for w in workers:
            w.run_episode()
        if (ep + 1) % 10 == 0:
            print(f"ep {ep + 1}  return {np.mean([w.returns[-1] for w in workers]):.2f}  loss {workers[0].loss:.4f}")
    return {"mean_grad_norm_last_20": float(np.mean(workers[0].norms[-20:])), "returns": float(np.mean(workers[0].returns[-10:]))}


if __name__ == "__main__":
    main()
