"""Small modules of the kinds that people train on sequences, graphs, sets and tables."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional

from tests.dnnc.engines.torch.modules.case import Whole, floats, tokens


class WaveNet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.c = nn.ModuleList([nn.Conv1d(4, 8, 2, dilation=d) for d in (1, 2, 4)])
        self.r = nn.ModuleList([nn.Conv1d(4, 4, 1) for _ in range(3)])
        self.k = nn.ModuleList([nn.Conv1d(4, 6, 1) for _ in range(3)])
        self.o = nn.Conv1d(6, 4, 1)

    def forward(self, x: Any) -> Any:
        skip = 0
        for c, r, k, d in zip(self.c, self.r, self.k, (1, 2, 4), strict=True):
            a, b = c(functional.pad(x, (d, 0))).chunk(2, 1)
            y = torch.tanh(a) * torch.sigmoid(b)
            skip = skip + k(y)
            x = x + r(y)
        return self.o(functional.relu(skip))


class TemporalBlock(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        wn = nn.utils.parametrizations.weight_norm
        self.a = wn(nn.Conv1d(4, 6, 3, padding=2, dilation=1))
        self.b = wn(nn.Conv1d(6, 4, 3, padding=4, dilation=2))
        self.d = nn.Dropout(0.0)

    def forward(self, x: Any) -> Any:
        y = self.d(functional.relu(self.a(x)[..., :-2]))
        y = functional.relu(self.b(y)[..., :-4].contiguous())
        return functional.relu(x + y)


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Embedding(11, 8, padding_idx=0)
        self.g = nn.GRU(8, 6, 2, batch_first=True, bidirectional=True)
        self.o = nn.Linear(12, 5)

    def forward(self, x: Any) -> Any:
        return self.o(self.g(self.e(x))[0])


class SequenceToSequence(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Embedding(11, 8)
        self.enc = nn.GRU(8, 8, batch_first=True)
        self.de = nn.Embedding(9, 8)
        self.cell = nn.GRUCell(16, 8)
        self.wa = nn.Linear(8, 8)
        self.ua = nn.Linear(8, 8, bias=False)
        self.v = nn.Linear(8, 1, bias=False)
        self.o = nn.Linear(16, 9)

    def forward(self, x: Any, y: Any) -> Any:
        m, h = self.enc(self.e(x))
        h = h[0]
        k = self.ua(m)
        outs = []
        d = self.de(y)
        for t in range(4):
            a = torch.softmax(self.v(torch.tanh(k + self.wa(h).unsqueeze(1))), 1)
            c = (a * m).sum(1)
            h = self.cell(torch.cat([d[:, t], c], -1), h)
            outs.append(self.o(torch.cat([h, c], -1)))
        return torch.stack(outs, 1)


class RelativePositions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(8, 8)
        self.kv = nn.Linear(8, 16)
        self.r = nn.Linear(8, 8, bias=False)
        self.u = nn.Parameter(torch.randn(2, 4) * 0.1)
        self.vb = nn.Parameter(torch.randn(2, 4) * 0.1)
        self.o = nn.Linear(8, 8)
        self.register_buffer("pos", torch.randn(9, 8))

    def forward(self, x: Any) -> Any:
        b, n, _ = x.shape
        q = self.q(x).view(b, n, 2, 4)
        k, v = self.kv(x).view(b, n, 2, 8).chunk(2, -1)
        r = self.r(self.pos).view(2 * n - 1, 2, 4)
        ac = torch.einsum("bihd,bjhd->bhij", q + self.u, k)
        bd = torch.einsum("bihd,jhd->bhij", q + self.vb, r)
        bd = functional.pad(bd, (1, 0)).view(b, 2, 2 * n, n)[:, :, 1:].view(b, 2, n, 2 * n - 1)[:, :, :, :n]
        p = torch.softmax((ac + bd) / 2.0, -1)
        return self.o(torch.einsum("bhij,bjhd->bihd", p, v).reshape(b, n, 8))


class LinearAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(8, 24)
        self.o = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        q, k, v = (t.unflatten(-1, (2, 4)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        q, k = (functional.elu(q) + 1, functional.elu(k) + 1)
        kv = torch.cumsum(k.unsqueeze(-1) * v.unsqueeze(-2), 2)
        z = torch.cumsum(k, 2)
        y = torch.einsum("bhnd,bhnde->bhne", q, kv) / (q * z).sum(-1, keepdim=True)
        return self.o(y.transpose(1, 2).flatten(2))


class SpatialGating(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = nn.LayerNorm(8)
        self.a = nn.Linear(8, 12)
        self.sn = nn.LayerNorm(6)
        self.sp = nn.Conv1d(5, 5, 1)
        self.b = nn.Linear(6, 8)
        nn.init.constant_(self.sp.bias, 1.0)

    def forward(self, x: Any) -> Any:
        u, v = functional.gelu(self.a(self.n(x)), approximate="tanh").chunk(2, -1)
        return x + self.b(u * self.sp(self.sn(v)))


class GraphConvolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)
        self.b = nn.Linear(8, 4)

    def prop(self, x: Any, e: Any) -> Any:
        deg = torch.zeros(6).index_add(0, e[1], torch.ones(10)) + 1
        w = (deg[e[0]] * deg[e[1]]).rsqrt()
        return x / deg[:, None] + torch.zeros_like(x).index_add(0, e[1], x[e[0]] * w[:, None])

    def forward(self, x: Any, e: Any) -> Any:
        return self.prop(self.b(functional.relu(self.prop(self.a(x), e))), e)


class GraphAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Linear(8, 8, bias=False)
        self.a = nn.Parameter(torch.randn(16) * 0.3)

    def forward(self, x: Any, e: Any) -> Any:
        h = self.w(x)
        z = functional.leaky_relu(torch.cat([h[e[0]], h[e[1]]], -1) @ self.a, 0.2)
        m = torch.full((6,), -1000000000.0).scatter_reduce(0, e[1], z.detach(), "amax")
        z = torch.exp(z - m[e[1]])
        t = torch.zeros(6).scatter_add(0, e[1], z)
        return torch.zeros_like(h).scatter_add(0, e[1][:, None].expand(-1, 8), h[e[0]] * (z / (t[e[1]] + 1e-09))[:, None])


class DeepSets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phi = nn.Sequential(nn.Linear(6, 8), nn.ELU(), nn.Linear(8, 8))
        self.rho = nn.Linear(16, 3)

    def forward(self, x: Any, m: Any) -> Any:
        h = self.phi(x)
        w = m.unsqueeze(-1)
        mean = (h * w).sum(1) / w.sum(1).clamp(min=1)
        mx = h.masked_fill(w == 0, -10000.0).max(1).values
        return self.rho(torch.cat([mean, mx.clamp(min=-5)], -1))


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bot = nn.Sequential(nn.Linear(5, 8), nn.ReLU(), nn.Linear(8, 4))
        self.e1 = nn.EmbeddingBag(20, 4, mode="sum")
        self.e2 = nn.EmbeddingBag(10, 4, mode="mean")
        self.top = nn.Sequential(nn.Linear(7, 8), nn.ReLU(), nn.Linear(8, 1))

    def forward(self, d: Any, a: Any, b: Any) -> Any:
        x = self.bot(d)
        t = torch.stack([x, self.e1(a), self.e2(b)], 1)
        z = torch.bmm(t, t.transpose(1, 2))
        i, j = torch.tril_indices(3, 3, -1)
        return torch.sigmoid(self.top(torch.cat([x, z[:, i, j]], 1)))


class Factorisation(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.u = nn.Embedding(12, 4)
        self.i = nn.Embedding(9, 4)
        self.ub = nn.Embedding(12, 1)
        self.ib = nn.Embedding(9, 1)
        self.mu = nn.Parameter(torch.zeros(1))

    def forward(self, u: Any, i: Any) -> Any:
        return (self.u(u) * self.i(i)).sum(-1) + self.ub(u).squeeze(-1) + self.ib(i).squeeze(-1) + self.mu


class Triplets(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.n = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 4))

    def forward(self, a: Any, p: Any, n: Any) -> Any:
        return functional.triplet_margin_loss(*(functional.normalize(self.n(t), dim=-1) for t in (a, p, n)), margin=0.3)


class SoftMixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.phi = nn.Parameter(torch.randn(8, 3, 2) * 0.3)
        self.w1 = nn.Parameter(torch.randn(3, 8, 12) * 0.3)
        self.w2 = nn.Parameter(torch.randn(3, 12, 8) * 0.3)

    def forward(self, x: Any) -> Any:
        part = torch.einsum("bmd,dnp->bmnp", x, self.phi)
        d = part.softmax(1)
        c = part.flatten(2).softmax(-1).view_as(part)
        xs = torch.einsum("bmd,bmnp->bnpd", x, d)
        ys = torch.einsum("bnph,nhd->bnpd", functional.gelu(torch.einsum("bnpd,ndh->bnph", xs, self.w1)), self.w2)
        return torch.einsum("bnpd,bmnp->bmd", ys, c)


class StateSpace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.A = nn.Parameter(torch.log(torch.arange(1, 4).float()).repeat(4, 1))
        self.dt = nn.Linear(4, 4)
        self.B = nn.Linear(4, 3)
        self.C = nn.Linear(4, 3)
        self.D = nn.Parameter(torch.ones(4))
        self.o = nn.Linear(4, 4)

    def forward(self, x: Any) -> Any:
        dt = functional.softplus(self.dt(x))
        rates = -torch.exp(self.A)
        into, out = (self.B(x), self.C(x))
        h = x.new_zeros(x.shape[0], 4, 3)
        ys = []
        for t in range(6):
            h = torch.exp(dt[:, t, :, None] * rates) * h + (dt[:, t] * x[:, t])[:, :, None] * into[:, t, None]
            ys.append((h * out[:, t, None]).sum(-1))
        return self.o(torch.stack(ys, 1) + x * self.D)


class RotaryAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.q = nn.Linear(8, 8, bias=False)
        self.kv = nn.Linear(8, 8, bias=False)
        self.o = nn.Linear(8, 8, bias=False)
        self.n = nn.RMSNorm(8)

    def rope(self, x: Any) -> Any:
        n, d = x.shape[-2:]
        th = torch.arange(n)[:, None] * 10000.0 ** (-torch.arange(0, d, 2) / d)
        a, b = (x[..., 0::2], x[..., 1::2])
        return torch.stack([a * th.cos() - b * th.sin(), a * th.sin() + b * th.cos()], -1).flatten(-2)

    def forward(self, x: Any) -> Any:
        h = self.n(x)
        q = self.rope(self.q(h).unflatten(-1, (2, 4)).transpose(1, 2))
        k, v = self.kv(h).unflatten(-1, (2, 1, 4)).permute(2, 0, 3, 1, 4)
        k = self.rope(k)
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        return x + self.o(y.transpose(1, 2).flatten(2))


class LatentAttention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lat = nn.Parameter(torch.randn(3, 8) * 0.1)
        self.x = nn.MultiheadAttention(8, 2, batch_first=True)
        self.n = nn.LayerNorm(8)
        self.o = nn.Linear(8, 2)

    def forward(self, x: Any) -> Any:
        part = self.lat.unsqueeze(0).expand(x.shape[0], -1, -1)
        part = part + self.x(self.n(part), x, x)[0]
        return self.o(part.mean(1))


class MaskedTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.e = nn.Embedding(11, 8)
        self.d = nn.Embedding(9, 8)
        self.t = nn.Transformer(8, 2, 1, 1, 16, 0.0, batch_first=True)
        self.o = nn.Linear(8, 9)

    def forward(self, x: Any, y: Any) -> Any:
        return self.o(
            self.t(
                self.e(x),
                self.d(y),
                tgt_mask=nn.Transformer.generate_square_subsequent_mask(4),
                src_key_padding_mask=x == 0,
                memory_key_padding_mask=x == 0,
            )
        )


WHOLE: dict[str, Whole] = {
    "WaveNet": Whole(WaveNet, (floats(4, 16),)),
    "TCN": Whole(TemporalBlock, (floats(4, 12),)),
    "a tagger of both directions": Whole(Tagger, (tokens(11, 7),), "cross-entropy"),
    "sequence to sequence": Whole(SequenceToSequence, (tokens(11, 5), tokens(9, 4)), "cross-entropy"),
    "Transformer-XL": Whole(RelativePositions, (floats(5, 8),)),
    "linear attention": Whole(LinearAttention, (floats(5, 8),)),
    "gMLP": Whole(SpatialGating, (floats(5, 8),)),
    "GCN": Whole(GraphConvolutions, (lambda: torch.randn(6, 8), lambda: torch.randint(0, 6, (2, 10)))),
    "GAT": Whole(GraphAttention, (lambda: torch.randn(6, 8), lambda: torch.randint(0, 6, (2, 10)))),
    "DeepSets": Whole(DeepSets, (floats(5, 6), lambda: (torch.randn(4, 5) > 0).float())),
    "DLRM": Whole(Recommender, (floats(5), tokens(20, 3), tokens(10, 4))),
    "matrix factorisation": Whole(Factorisation, (tokens(12), tokens(9))),
    "siamese triplet": Whole(Triplets, (floats(8), floats(8), floats(8)), "output"),
    "soft MoE": Whole(SoftMixture, (floats(5, 8),)),
    "S4D scan": Whole(StateSpace, (floats(6, 4),)),
    "RoPE and grouped queries": Whole(RotaryAttention, (floats(5, 8),)),
    "Perceiver": Whole(LatentAttention, (floats(6, 8),)),
    "decoder with masks": Whole(MaskedTransformer, (tokens(11, 5), tokens(9, 4)), "cross-entropy"),
}
