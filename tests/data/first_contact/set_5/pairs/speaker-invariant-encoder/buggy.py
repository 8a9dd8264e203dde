"""An encoder of short sequences for content, with a speaker branch behind a reversal layer."""
import torch
import torch.nn as nn
import torch.nn.functional as F


class HParams:
    n_mels = 10
    frames = 12
    enc_dim = 16
    n_content = 5
    n_speakers = 4
    batch_size = 32
    steps = 80
    speaker_weight = 0.3
    lr = 3e-3


class GradientReversal(nn.Module):
    def __init__(self, weight=1.0):
        super().__init__()
        self.weight = weight

    def forward(self, x):
        return x

    def backward(self, grad_output):
        return -self.weight * grad_output


class Encoder(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.conv = nn.Conv1d(hp.n_mels, hp.enc_dim, 3, padding=1)
        self.lstm = nn.LSTM(hp.enc_dim, hp.enc_dim // 2, batch_first=True, bidirectional=True)

    def forward(self, mel):
        h = F.relu(self.conv(mel)).transpose(1, 2)
        out, _ = self.lstm(h)
        return out.mean(1)


class SpeakerClassifier(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.reversal = GradientReversal()
        self.mlp = nn.Sequential(nn.Linear(hp.enc_dim, 32), nn.ReLU(), nn.Linear(32, hp.n_speakers))

    def forward(self, code):
        return self.mlp(self.reversal(code))


class Tacotiny(nn.Module):
    def __init__(self, hp):
        super().__init__()
        self.encoder = Encoder(hp)
        self.content = nn.Linear(hp.enc_dim, hp.n_content)
        self.speaker = SpeakerClassifier(hp)

    def forward(self, mel):
        code = self.encoder(mel)
        return self.content(code), self.speaker(code)


class Corpus:
    def __init__(self, hp, seed=0):
        self.hp = hp
        self.g = torch.Generator().manual_seed(seed)
        self.content = torch.randn(hp.n_content, hp.n_mels, hp.frames, generator=self.g)
        self.voice = torch.randn(hp.n_speakers, hp.n_mels, 1, generator=self.g)

    def sample(self):
        hp = self.hp
        c = torch.randint(hp.n_content, (hp.batch_size,), generator=self.g)
        s = torch.randint(hp.n_speakers, (hp.batch_size,), generator=self.g)
        noise = 0.3 * torch.randn(hp.batch_size, hp.n_mels, hp.frames, generator=self.g)
        return self.content[c] + self.voice[s] + noise, c, s


def train(hp, model, corpus):
    optimizer = torch.optim.Adam(model.parameters(), lr=hp.lr)
    history = []
    for step in range(1, hp.steps + 1):
        mel, content, speaker = corpus.sample()
        content_logits, speaker_logits = model(mel)
        content_loss = F.cross_entropy(content_logits, content)
        speaker_loss = F.cross_entropy(speaker_logits, speaker)
        loss = content_loss + hp.speaker_weight * speaker_loss
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        history.append((content_loss.item(), speaker_loss.item()))
        if step % 20 == 0:
            print(f"{step:4d} content {content_loss.item():.3f} speaker {speaker_loss.item():.3f}")
    return history


def main():
    torch.manual_seed(0)
    hp = HParams()
    model = Tacotiny(hp)
    history = train(hp, model, Corpus(hp))
    return model, history


if __name__ == "__main__":
    main()
