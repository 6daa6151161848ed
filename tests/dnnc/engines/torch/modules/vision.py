"""Small modules of the kinds that people train on images, shapes and latent spaces."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.dnnc.engines.torch.modules.case import Whole, floats


class SqueezeAndExcite(nn.Module):
    def __init__(self, c: Any, act: Any, gate: Any) -> None:
        super().__init__()
        self.f = nn.Conv2d(c, 2, 1)
        self.g = nn.Conv2d(2, c, 1)
        self.act, self.gate = (act, gate)

    def forward(self, x: Any) -> Any:
        return x * self.gate(self.g(self.act(self.f(functional.adaptive_avg_pool2d(x, 1)))))


class ConvNeXt(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.dw = nn.Conv2d(4, 4, 7, padding=3, groups=4)
        self.norm = nn.LayerNorm(4)
        self.a = nn.Linear(4, 16)
        self.b = nn.Linear(16, 4)
        self.gamma = nn.Parameter(torch.full((4,), 0.1))

    def forward(self, x: Any) -> Any:
        y = self.dw(x).permute(0, 2, 3, 1)
        y = self.gamma * self.b(functional.gelu(self.a(self.norm(y))))
        return x + y.permute(0, 3, 1, 2)


class InvertedBottleneck(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(4, 8, 1, bias=False),
            nn.BatchNorm2d(8),
            nn.SiLU(),
            nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False),
            nn.BatchNorm2d(8),
            nn.SiLU(),
            SqueezeAndExcite(8, nn.SiLU(), nn.Sigmoid()),
            nn.Conv2d(8, 4, 1, bias=False),
            nn.BatchNorm2d(4),
        )

    def forward(self, x: Any) -> Any:
        return x + self.net(x)


class MobileBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv2d(4, 8, 1, bias=False),
            nn.BatchNorm2d(8, eps=0.001, momentum=0.01),
            nn.Hardswish(),
            nn.Conv2d(8, 8, 5, stride=2, padding=2, groups=8, bias=False),
            nn.BatchNorm2d(8),
            nn.Hardswish(inplace=True),
            SqueezeAndExcite(8, nn.ReLU(inplace=True), nn.Hardsigmoid()),
            nn.Conv2d(8, 4, 1),
        )

    def forward(self, x: Any) -> Any:
        return self.net(x)


class DenseBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.l = nn.ModuleList(
            [
                nn.Sequential(
                    nn.BatchNorm2d(4 + 2 * i), nn.ReLU(inplace=True), nn.Conv2d(4 + 2 * i, 2, 3, padding=1, bias=False)
                )
                for i in range(3)
            ]
        )
        self.h = nn.Linear(10, 5)

    def forward(self, x: Any) -> Any:
        fs = [x]
        for part in self.l:
            fs.append(part(torch.cat(fs, 1)))
        return self.h(functional.avg_pool2d(torch.cat(fs, 1), 6).flatten(1))


class Mixer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Conv2d(3, 6, 4, 4)
        self.n1 = nn.LayerNorm(6)
        self.t = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4))
        self.n2 = nn.LayerNorm(6)
        self.c = nn.Sequential(nn.Linear(6, 12), nn.GELU(), nn.Linear(12, 6))
        self.h = nn.Linear(6, 5)

    def forward(self, x: Any) -> Any:
        x = self.p(x).flatten(2).transpose(1, 2)
        x = x + self.t(self.n1(x).transpose(1, 2)).transpose(1, 2)
        x = x + self.c(self.n2(x))
        return self.h(x.mean(1))


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.p = nn.Conv2d(3, 8, 4, 4)
        self.cls = nn.Parameter(torch.randn(1, 1, 8) * 0.02)
        self.pos = nn.Parameter(torch.randn(1, 5, 8) * 0.02)
        self.l = nn.TransformerEncoderLayer(8, 2, 16, 0.0, "gelu", batch_first=True, norm_first=True)
        self.n = nn.LayerNorm(8)
        self.h = nn.Linear(8, 5)

    def forward(self, x: Any) -> Any:
        x = self.p(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls.expand(x.shape[0], -1, -1), x], 1) + self.pos
        return self.h(self.n(self.l(x))[:, 0])


class ShiftedWindows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.o = nn.Linear(8, 8)
        self.n = nn.LayerNorm(8)
        self.table = nn.Parameter(torch.randn(9, 2) * 0.02)
        c = torch.stack(torch.meshgrid(torch.arange(2), torch.arange(2), indexing="ij")).flatten(1)
        rel = (c[:, :, None] - c[:, None]).permute(1, 2, 0) + 1
        self.register_buffer("idx", rel[..., 0] * 3 + rel[..., 1])
        img = torch.zeros(1, 4, 4, 1)
        n = 0
        for a in (slice(0, 2), slice(2, 3), slice(3, 4)):
            for b in (slice(0, 2), slice(2, 3), slice(3, 4)):
                img[:, a, b] = n
                n += 1
        w = img.view(1, 2, 2, 2, 2, 1).permute(0, 1, 3, 2, 4, 5).reshape(4, 4)
        m = w[:, None] - w[:, :, None]
        self.register_buffer("mask", m.masked_fill(m != 0, -100.0).masked_fill(m == 0, 0.0))

    def forward(self, x: Any) -> Any:
        b = x.shape[0]
        h = torch.roll(self.n(x), (-1, -1), (1, 2))
        w = h.view(b, 2, 2, 2, 2, 8).permute(0, 1, 3, 2, 4, 5).reshape(-1, 4, 8)
        q, k, v = self.qkv(w).reshape(-1, 4, 3, 2, 4).permute(2, 0, 3, 1, 4)
        a = q @ k.transpose(-2, -1) * 0.5 + self.table[self.idx.view(-1)].view(4, 4, 2).permute(2, 0, 1)
        a = (a.view(b, 4, 2, 4, 4) + self.mask[None, :, None]).view(-1, 2, 4, 4)
        y = (torch.softmax(a, -1) @ v).transpose(1, 2).reshape(-1, 4, 8)
        y = self.o(y).view(b, 2, 2, 2, 2, 8).permute(0, 1, 3, 2, 4, 5).reshape(b, 4, 4, 8)
        return x + torch.roll(y, (1, 1), (1, 2))


class Variational(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Linear(8, 12)
        self.m = nn.Linear(12, 3)
        self.v = nn.Linear(12, 3)
        self.d = nn.Sequential(nn.Linear(3, 12), nn.ReLU(), nn.Linear(12, 8))

    def forward(self, x: Any, eps: Any) -> Any:
        h = functional.relu(self.e(x))
        mu, lv = (self.m(h), self.v(h))
        y = self.d(mu + torch.exp(0.5 * lv) * eps)
        return functional.mse_loss(y, x, reduction="sum") / 4 - 0.5 * torch.mean(torch.sum(1 + lv - mu.pow(2) - lv.exp(), 1))


class Quantised(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Linear(4, 3)
        self.cb = nn.Embedding(6, 3)
        self.d = nn.Linear(3, 4)

    def forward(self, x: Any) -> Any:
        z = self.e(x)
        i = ((z[:, None] - self.cb.weight[None]) ** 2).sum(-1).argmin(-1)
        q = self.cb(i)
        part = functional.mse_loss(q, z.detach()) + 0.25 * functional.mse_loss(q.detach(), z)
        q = z + (q - z).detach()
        return functional.mse_loss(self.d(q), x) + part


class RadianceField(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(27, 16)
        self.b = nn.Linear(43, 16)
        self.sig = nn.Linear(16, 1)
        self.rgb = nn.Sequential(nn.Linear(19, 8), nn.ReLU(), nn.Linear(8, 3), nn.Sigmoid())

    def forward(self, p: Any, d: Any) -> Any:
        fr = 2.0 ** torch.arange(4)
        e = p.unsqueeze(-1) * fr
        e = torch.cat([p, torch.sin(e).flatten(2), torch.cos(e).flatten(2)], -1)
        h = functional.relu(self.a(e))
        h = functional.relu(self.b(torch.cat([h, e], -1)))
        sg = functional.softplus(self.sig(h)).squeeze(-1)
        c = self.rgb(torch.cat([h, functional.normalize(d, dim=-1).unsqueeze(1).expand(-1, 6, -1)], -1))
        al = 1 - torch.exp(-sg * 0.3)
        passed = torch.cumprod(torch.cat([torch.ones_like(al[:, :1]), 1 - al + 1e-10], 1), 1)[:, :-1]
        return ((al * passed).unsqueeze(-1) * c).sum(1)


class Hypernetwork(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.h = nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 36))

    def forward(self, x: Any, z: Any) -> Any:
        w = self.h(z)
        return torch.tanh(torch.bmm(w[:, :32].view(-1, 4, 8), x.unsqueeze(-1)).squeeze(-1) + w[:, 32:])


class ModulatedConvolution(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(2, 3, 3, 3) * 0.3)
        self.st = nn.Linear(4, 3)
        self.noise = nn.Parameter(torch.zeros(1))

    def forward(self, x: Any, z: Any) -> Any:
        b = x.shape[0]
        w = self.w[None] * (self.st(z)[:, None, :, None, None] + 1)
        w = w * torch.rsqrt((w**2).sum((2, 3, 4), keepdim=True) + 1e-08)
        y = functional.conv2d(x.reshape(1, -1, 5, 5), w.view(-1, 3, 3, 3), padding=1, groups=b)
        return functional.leaky_relu(y.view(b, 2, 5, 5), 0.2)


class Denoiser(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.te = nn.Sequential(nn.Linear(8, 8), nn.SiLU(), nn.Linear(8, 8))
        self.i = nn.Conv2d(2, 8, 3, padding=1)
        self.g = nn.GroupNorm(2, 8)
        self.d = nn.Conv2d(8, 8, 3, 2, 1)
        self.u = nn.ConvTranspose2d(8, 8, 4, 2, 1)
        self.o = nn.Conv2d(16, 2, 3, padding=1)

    def forward(self, x: Any, t: Any) -> Any:
        w = torch.exp(-math.log(10000.0) * torch.arange(4) / 4)
        a = t[:, None].float() * w
        e = self.te(torch.cat([a.sin(), a.cos()], -1))
        h = functional.silu(self.g(self.i(x)) + e[:, :, None, None])
        part = functional.silu(self.d(h))
        return self.o(torch.cat([h, self.u(part)], 1))


class TwoTowers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(6, 4)
        self.b = nn.Linear(5, 4)
        self.ls = nn.Parameter(torch.tensor(math.log(10.0)))

    def forward(self, x: Any, y: Any) -> Any:
        a, b = (t / t.norm(dim=-1, keepdim=True) for t in (self.a(x), self.b(y)))
        part = self.ls.exp().clamp(max=100) * a @ b.t()
        t = torch.arange(4)
        return (functional.cross_entropy(part, t) + functional.cross_entropy(part.t(), t)) / 2


class Capsules(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.W = nn.Parameter(torch.randn(4, 2, 5, 3) * 0.3)

    def forward(self, x: Any) -> Any:
        u = torch.einsum("iodk,bik->biod", self.W, x)
        b = torch.zeros(x.shape[0], 4, 2)
        for r in range(3):
            c = b.softmax(-1)
            v = (c.unsqueeze(-1) * u).sum(1)
            n = (v**2).sum(-1, keepdim=True)
            v = n / (1 + n) * v / (n + 1e-08).sqrt()
            if r < 2:
                b = b + (u.detach() * v.unsqueeze(1)).sum(-1)
        return v


class ConvolutionalLstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c = nn.Conv2d(5, 12, 3, padding=1)
        self.o = nn.Conv2d(3, 1, 1)

    def forward(self, x: Any) -> Any:
        h = x.new_zeros(x.shape[0], 3, 4, 4)
        c = h
        for t in range(3):
            i, forget, g, o = self.c(torch.cat([x[:, t], h], 1)).chunk(4, 1)
            c = torch.sigmoid(forget) * c + torch.sigmoid(i) * torch.tanh(g)
            h = torch.sigmoid(o) * torch.tanh(c)
        return self.o(h)


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.nets = nn.ModuleList([nn.Sequential(nn.Linear(3, 8), nn.Tanh(), nn.Linear(8, 6)) for _ in range(3)])
        self.loc = nn.Parameter(torch.zeros(6))
        self.ls = nn.Parameter(torch.zeros(6))

    def forward(self, x: Any) -> Any:
        x = (x - self.loc) * torch.exp(-self.ls)
        ld = -self.ls.sum()
        for n in self.nets:
            a, b = x.chunk(2, 1)
            t, sc = n(a).chunk(2, 1)
            sc = torch.tanh(sc)
            b = b * torch.exp(sc) + t
            ld = ld + sc.sum(1)
            x = torch.cat([b, a], 1)
        return (0.5 * (x * x).sum(1) + 3 * math.log(2 * math.pi) - ld).mean()


WHOLE: dict[str, Whole] = {
    "ConvNeXt": Whole(ConvNeXt, (floats(4, 6, 6),)),
    "EfficientNet": Whole(InvertedBottleneck, (floats(4, 6, 6),)),
    "MobileNetV3": Whole(MobileBlock, (floats(4, 6, 6),)),
    "DenseNet": Whole(DenseBlock, (floats(4, 6, 6),), "cross-entropy"),
    "MLP-Mixer": Whole(Mixer, (floats(3, 8, 8),), "cross-entropy"),
    "ViT": Whole(VisionTransformer, (floats(3, 8, 8),), "cross-entropy"),
    "Swin": Whole(ShiftedWindows, (floats(4, 4, 8),)),
    "VAE": Whole(Variational, (floats(8), floats(3)), "output"),
    "VQ-VAE": Whole(Quantised, (floats(4),), "output"),
    "NeRF": Whole(RadianceField, (floats(6, 3), floats(3))),
    "hypernetwork": Whole(Hypernetwork, (floats(8), floats(3))),
    "StyleGAN modulated convolution": Whole(ModulatedConvolution, (floats(3, 5, 5), floats(4))),
    "diffusion U-Net": Whole(Denoiser, (floats(2, 8, 8), lambda: torch.randint(0, 100, (4,)))),
    "CLIP": Whole(TwoTowers, (floats(6), floats(5)), "output"),
    "capsules": Whole(Capsules, (floats(4, 3),)),
    "ConvLSTM": Whole(ConvolutionalLstm, (floats(3, 2, 4, 4),)),
    "RealNVP": Whole(Flow, (floats(6),), "output"),
}
