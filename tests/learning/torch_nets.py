"""Networks in PyTorch, for tests: three that people have, and some that use every operation we know."""

import math

import torch  # type: ignore[import-not-found]  # an extra
import torch.nn.functional as F  # type: ignore[import-not-found]
from torch import nn  # type: ignore[import-not-found]


class Mlp(nn.Module):
    def __init__(self, inputs=12, classes=4):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(inputs, 8), nn.ReLU(), nn.Linear(8, classes))

    def forward(self, x):
        return self.layers(x)


class LeNet(nn.Module):
    """Of 12 × 12 pixels, so that it is quick. Half as published, half as many mean it today: its ReLU writes into its input."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Unflatten(1, (1, 12, 12)),
            *(nn.Conv2d(1, 3, 3), nn.Tanh(), nn.AvgPool2d(2)),
            *(nn.Conv2d(3, 5, 3), nn.ReLU(inplace=True), nn.MaxPool2d(2)),
            *(nn.Flatten(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 4)),
        )

    def forward(self, x):
        return self.layers(x)


class Normed(nn.Module):
    """With BatchNorm of both kinds, in training mode."""

    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(
            *(nn.Unflatten(1, (1, 12, 12)), nn.Conv2d(1, 3, 3, stride=3), nn.BatchNorm2d(3), nn.Tanh(), nn.Flatten()),
            *(nn.Linear(48, 6), nn.BatchNorm1d(6, affine=False), nn.Tanh(), nn.Linear(6, 4)),
        )

    def forward(self, x):
        return self.layers(x)


class Letters(nn.Module):
    """An LSTM from zero, and a GRU from a state that is trained."""

    def __init__(self):
        super().__init__()
        self.letters = nn.Embedding(20, 4)
        self.recurrent = nn.LSTM(4, 4, batch_first=True)
        self.started = nn.GRU(4, 3, batch_first=True)
        self.start = nn.Parameter(torch.randn(1, 1, 3))
        self.out = nn.Linear(3, 4)

    def forward(self, x):
        said = self.recurrent(self.letters(x.long()))[0]
        return self.out(self.started(said, self.start.expand(-1, x.shape[0], -1).contiguous())[0][:, -1])


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.letters, self.place = nn.Embedding(20, 8), nn.Parameter(torch.randn(2, 8))
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.0, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 1)
        self.out = nn.Linear(8, 4)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(2))

    def forward(self, x):
        return self.out(self.encoder(self.letters(x.long()) + self.place, mask=self.mask, is_causal=True).mean(1))


# ---- every operation; most on parameters, whose shapes PyTorch knows: exporting an unknown number of samples takes longer


class Curves(nn.Module):
    """Of one number each."""

    def __init__(self):
        super().__init__()
        kinks = [[0.0, 1.0], [0.5, -1.0], [-0.5, 0.0]]
        self.x, self.slope = nn.Parameter(torch.tensor([*kinks, [0.3, -2.1], [1.7, 0.8]])), nn.PReLU(2)

    def forward(self):
        x = self.x
        y = x.abs() + 0.5
        curves = [
            *(x.abs(), x.cos(), x.erf(), x.exp(), x.floor() * x, y.log(), y.log1p(), F.logsigmoid(x), F.mish(x), -x),
            *(
                y.reciprocal(),
                F.relu(x),
                F.relu6(5 * x),
                x.round() * x,
                y.rsqrt(),
                F.selu(x),
                x.sigmoid(),
                x.sign() * x,
            ),
            *(F.silu(x), x.sin(), y.sqrt(), x.square(), x.tanh(), F.hardsigmoid(x), F.hardswish(x), x.detach() * x),
            *(
                F.hardtanh(x),
                F.leaky_relu(x, 0.2),
                F.elu(x),
                F.softplus(x, 2.0),
                F.gelu(x),
                F.gelu(x, approximate="tanh"),
            ),
            *(self.slope(x), x.clamp(-0.45, 0.45), x.clamp_min(0.1), x.clamp_max(0.1), x**3, y**0.5, 2**x, 1 - x),
            *(torch.sub(x, y, alpha=2), torch.add(x, y, alpha=2), torch.rsub(x, y, alpha=2), x / y, x % 0.7),
            *(torch.maximum(x, y), torch.minimum(x, y), torch.max(x, y), torch.min(x, y), torch.where(x > y, x, 2 * y)),
            *(torch.lerp(x, y, 0.3), torch.addcmul(x, x, y), x.masked_fill(x < 0.1, 2.0)),
            *(F.normalize(x, dim=1), x.type_as(y), x.to(torch.float64).to(x), x.to("cpu")),
            x + x.new_full((), 2) + x.new_ones(2),
        ]
        questions = [
            *((x <= y) | (x > 1), (x >= y) & ~(x == y), (x != y) & (x < y), torch.logical_and(x > 0, y > 1)),
            *(torch.logical_or(x > 0, y > 1), torch.logical_not(x > 0)),
        ]
        return torch.cat([*curves, torch.cat(questions, dim=1).float()], dim=1)


class OverAxes(nn.Module):
    def __init__(self):
        super().__init__()
        self.x, self.scale = nn.Parameter(torch.randn(3, 24)), nn.Parameter(torch.linspace(0.5, 1.5, 24))

    def forward(self):
        x = (self.x * self.scale).unflatten(1, (2, -1, 4))
        some = [
            *(x.sum(1), x.sum((1, 2)), x.mean((2, 3), keepdim=True), x.amax(1), x.amin((1, 3)), x.max(1).values),
            *(x.max(2, keepdim=True)[0], x.var(1), x.var((1, 2), correction=0), x.std(2)),
            *(x.logsumexp(1), x.softmax(2), x.log_softmax(3), x.cumsum(2), F.glu(x)),
            *(x.argmax(1).float(), (x > 0).any(1).float(), (x > -3).all(2).float()),
            *(x + x.sum() * 0 + x.max() * 0 + x.min() * 0, x[:, 0].matmul(x[:, 1].mT)),
            *(torch.einsum("nabc,nadc->nabd", x, x), x[:, 0].bmm(x[:, 1].transpose(1, 2))),
            torch.baddbmm(x[:, 0, :, :3], x[:, 0], x[:, 1].mT, beta=2, alpha=0.5),
            *(x.flatten(1).mv(self.scale)[:, None], F.softmax(x.half().float(), 1, dtype=torch.float32)),
            *(F.rms_norm(x, (4,)), x * self.scale.dot(self.scale)),
            torch.addmm(self.scale[:3], x[:, 0, 0], self.scale.view(8, 3)[:4]),
        ]
        return torch.cat([each.flatten() for each in some])


class Shapes(nn.Module):
    order: torch.Tensor

    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.randn(3, 2, 3, 4))
        self.register_buffer("order", torch.tensor([2, 0, 1]))

    def forward(self):
        x = self.x
        y = x.clone()
        corner = torch.ones(4, 4).tril() + torch.ones(4, 4).triu(1) * torch.arange(4)
        some = [
            *(x.permute(0, 3, 1, 2), x.transpose(1, 2), x.movedim(1, 3), x[:, 1], x[:, :, ::2], x[..., -1:]),
            *(*x.split(3, 3), *x.split([1, 3], 3), *x.chunk(2, 3), *x.unbind(1), x[:, :, self.order]),
            *(x.index_select(2, self.order), x.flip(1, 3), x.gather(3, torch.zeros_like(x, dtype=torch.int64))),
            *(torch.stack([x, y], 1), torch.cat([x, y], -1), F.pad(x, (1, 2, 0, 1)), F.pad(x, (1, 1), value=3.0)),
            *(F.pad(x, (-1, 1)), F.pad(x, (1, 1, 1, 1), mode="reflect"), x @ corner, x.unsqueeze(1).squeeze(1)),
            *(x.view_as(y), x.reshape_as(y), x.contiguous().detach() + x, x + torch.zeros(4) + torch.full((4,), 2.0)),
        ]
        return torch.cat([each.flatten() for each in some])


class Samples(nn.Module):
    """What depends on the number of samples."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.linspace(0.5, 1.5, 24))

    def forward(self, x):
        n = x.shape[0]
        x = (x * self.scale).view(n, 2, 3, 4)
        some = [
            *(x.unflatten(3, (2, -1)), x[:, :, :1].expand(-1, -1, 3, -1), x[:, :1].expand_as(x)),
            *(x.repeat(1, 2, 1, 1), x.reshape(n, -1, 2)),
            x + torch.ones_like(x) + torch.full_like(x, 2) + x.new_zeros(4),
            x + torch.zeros(n, 1, 1, 1) + torch.scalar_tensor(2.0) + math.pi,
        ]
        return torch.cat([each.flatten(1) for each in some], dim=1)


class Numbers(nn.Module):
    """All of them in one network: to export and to compile four takes longer."""

    def __init__(self):
        super().__init__()
        self.curves, self.over_axes, self.shapes, self.samples = Curves(), OverAxes(), Shapes(), Samples()

    def forward(self, x):
        known = torch.cat([self.curves().flatten(), self.over_axes(), self.shapes()])
        return torch.cat([x[:, :1] * known, self.samples(x)], dim=1)


class Images(nn.Module):
    """What is done to images, of 2 × 8 × 8. ``LeNet`` and ``Normed`` do it to any number of them."""

    def __init__(self):
        super().__init__()
        self.x = nn.Parameter(torch.randn(2, 2, 8, 8))
        self.first = nn.Conv2d(2, 4, 3, padding="same")
        self.many = nn.ModuleList(
            [
                *(nn.Conv2d(4, 6, 3, stride=2, padding=1), nn.Conv2d(4, 4, 3, groups=4, dilation=2)),
                *(nn.Conv2d(4, 2, 1, bias=False), nn.GroupNorm(2, 4), nn.BatchNorm2d(4), nn.MaxPool2d(3, 2, 1)),
                *(nn.AvgPool2d(3, 2, 1), nn.AdaptiveAvgPool2d(4), nn.AdaptiveAvgPool2d(1), nn.LayerNorm([4, 8, 8])),
                *(nn.Dropout(0.5), nn.Dropout2d(0.5), nn.Identity()),
            ]
        )
        lines = [nn.Conv1d(2, 3, 5, stride=3), nn.AvgPool1d(2), nn.MaxPool1d(3, 2), nn.AdaptiveAvgPool1d(4)]
        self.lines, self.solid = nn.ModuleList(lines), nn.Conv3d(2, 2, 2)
        self.eval()
        self.many[4].running_mean = torch.linspace(-0.5, 0.5, 4)
        self.many[4].running_var = torch.linspace(0.5, 2, 4)

    def forward(self, x):
        images = self.x
        first, lines = self.first(images), images.flatten(2)
        seen = [layer(first) for layer in self.many] + [layer(lines) for layer in self.lines]
        seen.append(self.solid(images.view(-1, 2, 4, 4, 4)))
        return x[:, :1] * torch.cat([each.flatten() for each in seen])


class Sequences(nn.Module):
    """What is done to sequences, besides ``Letters`` and ``Transformer``: recurrences, attention, tied weights."""

    text: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("text", torch.tensor([[3, 1], [0, 19], [7, 7]]))
        self.letters, self.large = nn.Embedding(20, 4, padding_idx=1), nn.Embedding(300, 4)
        self.tied = nn.Linear(4, 20, bias=False)
        self.tied.weight = self.letters.weight
        self.both_ways = nn.LSTM(4, 3, bias=False, batch_first=True, bidirectional=True)
        self.plain = nn.RNN(4, 3, batch_first=True)
        self.started = nn.LSTM(4, 3, num_layers=2, batch_first=True)
        self.start = nn.Parameter(torch.randn(2, 2, 1, 3))

    def forward(self, x):
        text = self.text
        y = self.letters(text) + self.large(text)
        start = self.start.expand(-1, -1, 3, -1)
        out, (hidden, cell) = self.started(y, (start[0].contiguous(), start[1].contiguous()))
        q = torch.stack([y, y.flip(1)], 1)
        from_zero, (_, end) = self.both_ways(y)
        seen = [out, hidden[0], cell[0], from_zero, end.transpose(0, 1), self.plain(y)[0]]
        seen += [
            F.scaled_dot_product_attention(q, q, q, is_causal=True),
            F.scaled_dot_product_attention(q, q, q, attn_mask=text[:, None, None] == 0),
            F.scaled_dot_product_attention(q, q[:, :1], q[:, :1], scale=0.3, enable_gqa=True),
        ]
        return x[:, :1].float() * torch.cat([each.flatten() for each in (*seen, self.tied(y).mean(1))])
