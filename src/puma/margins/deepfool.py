"""The engine behind ``deepfool`` and ``tight``."""

from dataclasses import dataclass

import torch
from torch import Tensor

from puma.margins.finish import Finish, look
from puma.margins.geometry import Box, Norm, closing_radius
from puma.margins.network import Network, gradient, pick, true_gap, without
from puma.margins.rows import Rows
from puma.margins.status import Status
from puma.margins.stream import DONE, Arrival, Method, Stage

STEP, LOOK = 0, 1


@dataclass(frozen=True)
class Search:
    """How hard to search."""

    candidates: int = 2
    steps: int = 3
    wrong_steps: int = 6
    temperature: float = 0.1
    race: float = 1.0  # rivals within this factor of the nearest are all followed ...
    race_steps: int = 3
    lead: float = 1.08  # ... for this long, and then only those within this factor
    momentum: float = 0.0
    tolerance: float = 2e-3
    adopt: bool = True
    etas: tuple = (1.0, 1.0, 0.5)
    eta_pow: float = 0.5


def engine(network, norm, box, ranks, config, cap=None):
    """Build."""
    reach = norm.diameter(box.high - box.low, int(torch.tensor(network.shape).prod()))
    finish = Finish(tolerance=config.tolerance, reach=reach, retry_stage=STEP, retries=2)
    return Method(
        begin=lambda a: begin(a, network, norm, box, ranks, config),
        stages=(
            Stage(lambda r: step(r, network, norm, box, config), 1, 1),
            Stage(lambda r: look(r, network, box, finish), 1, 0),
        ),
        begin_forwards=1,
        begin_backwards=config.candidates,
    )


def begin(a: Arrival, network, norm, box, ranks, config) -> Rows:
    points = a.origin.detach().requires_grad_()
    logits = network.logits(points)
    values = logits.detach()
    right = values.argmax(1) == a.label
    gap, _ = true_gap(values, a.label, right)
    sign = torch.where(right, 1.0, -1.0)
    gaps = sign[:, None] * (pick(values, a.label)[:, None] - values)
    distance = without(gaps / ranks[a.label], a.label) if False else gaps / ranks[a.label]
    worst = torch.where(right, torch.inf, -torch.inf)
    distance = distance.scatter(1, a.label[:, None], worst[:, None])
    order = (distance * sign[:, None]).argsort(1)[:, : config.candidates]
    many = order.shape[1]
    rows = []
    best = None
    label_logit = pick(logits, a.label)
    for j in range(many):
        rival = order[:, j]
        g = sign * (label_logit - pick(logits, rival))
        w = gradient(g.sum(), points, again=j + 1 < many)
        s = -norm.steepest(w)
        r, slope = closing_radius(box, a.origin, s, g.detach(), w)
        key = torch.where(right, r, torch.where(g.detach() > 0, -r, torch.inf))
        rows.append((key, rival, s, r, slope, norm.dual(w)))
    n = len(a.label)
    keys = torch.stack([k[0] for k in rows])
    best = keys.min(0)[0]
    follow = keys <= best.abs() * config.race if config.race > 1 else torch.zeros_like(keys, dtype=torch.bool)
    follow = follow & right
    follow[keys.argmin(0), torch.arange(n)] = True
    pos, which = follow.T.nonzero(as_tuple=True)
    def choose(i):
        out = torch.stack([k[i] for k in rows], 1)
        return out[pos, which]
    a = Arrival(a.owner[pos], a.origin[pos], a.label[pos])
    right, gap = right[pos], gap[pos]
    n = len(pos)
    zeros = torch.zeros(n)
    ints = torch.zeros(n, dtype=torch.int32)
    R = Rows(owner=a.owner, origin=a.origin, label=a.label, right=right, rival=choose(1), stage=ints + STEP, step=ints + 1,
        pattern=choose(2), memory=torch.zeros(n, 0), radius=choose(3), slope=choose(4), scale=gap, low=zeros, low_gap=gap,
        high=zeros + torch.inf, high_gap=zeros, looks=ints, retries=ints, status=ints.to(torch.int8))
    if config.momentum:
        R = R.change(memory=-R.pattern)
    return R


def step(rows: Rows, network, norm, box, config) -> Rows:
    points = box.ray(rows.origin, rows.pattern, rows.radius).requires_grad_()
    logits = network.logits(points)
    values = logits.detach()
    g_true, top = true_gap(values, rows.label, rows.right)
    rival = torch.where(rows.right & (~torch.tensor(config.adopt)), rows.rival, top)
    g_right = pick(logits, rows.label) - pick(logits, rival)
    tau = (config.temperature * rows.scale.clamp_min(1e-12))[:, None]
    g_wrong = (without(logits, rows.label) / tau).logsumexp(1) * tau[:, 0] - pick(logits, rows.label)
    g = torch.where(rows.right, g_right, g_wrong)
    w = gradient(g.sum(), points)
    gap = torch.where(rows.right, g_right, g_true).detach()
    eta = eta_of(rows.step, config)
    memory = rows.memory
    if config.momentum:
        memory = config.momentum * memory + w / norm.dual(w)[:, None] * (w.shape[1] if norm.name == 'linf' else 1)
        u = norm.steepest(memory)
    else:
        u = norm.steepest(w)
    pattern = norm.confine(torch.addcmul(rows.pattern, u, -eta[:, None]))
    radius, slope = relinearise(box, rows.origin, pattern, points.detach(), rows.radius, gap, w)
    step = rows.step + 1
    limit = torch.where(rows.right, config.steps, config.wrong_steps)
    rows = rows.change(memory=memory)
    stage = torch.where(step >= limit, LOOK, STEP)
    if config.race > 1:
        _, group = rows.owner.unique_consecutive(return_inverse=True)
        best = torch.full_like(radius, torch.inf).scatter_reduce(0, group, radius, 'amin')[group]
        factor = torch.where(step >= limit, 1.0, torch.where(step >= config.race_steps, config.lead, torch.inf))
        stage = torch.where(radius <= best * factor, stage, -2)
    return rows.change(rival=rival, pattern=pattern, radius=radius, slope=slope, step=step, stage=stage,
       low=torch.zeros_like(radius), low_gap=rows.scale, looks=torch.zeros_like(rows.looks))


def eta_of(step, config):
    t = torch.tensor(config.etas)
    last = t[-1] * (len(t) / (step + 1.0)) ** config.eta_pow
    return torch.where(step < len(t), t[step.clamp(max=len(t) - 1).long()], last)


def relinearise(box, origin, pattern, points, radius, gap, w, rounds=2):
    r = radius
    for _ in range(rounds):
        p = torch.addcmul(origin, pattern, r[:, None])
        inside = (p > box.low) & (p < box.high)
        left = gap + (w * (p.clamp_(box.low, box.high) - points)).sum(1)
        slope = -(w * pattern * inside).sum(1)
        new = r + left / slope
        r = torch.where(slope > 0, new.clamp(min=0.3 * radius, max=2.5 * radius), r)
    return r, slope
