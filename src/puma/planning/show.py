"""What a plan does, in words and as a picture; and what two plans do differently."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch

from puma.drawing import BINS, KEPT, POOL, PRUNED
from puma.errors import tell_missing
from puma.planning.plan import Plan, find_lost_classes
from puma.planning.prune import PruneRule
from puma.planning.strength import StrengthRule
from puma.pools import Origin, Pool
from puma.progress import format_pixel_step

_BAR = 30  # characters
_BINS = 16  # lines of a terminal
_MOST_CLASSES = 25  # lines; more would scroll the rest away
_NEAR, _SAFE = 2.0, 3.0  # in eps: pruning from 1.6 on took a quarter of the robustness, from 3.25 and 4.1 on none
_BALANCE_SHIFT = 1.5  # a class whose share of the pool changes by more than this factor is worth a warning
_ALWAYS_TOLD = ("strength.rule", "strength.eps")  # also where they are as usual


def format_plan(plan: Plan, pool: Pool | None = None) -> str:
    """Counts, strengths and, with the pool, classes and origins, as lines of text."""
    keep, strength = plan.keep, plan.strength[plan.keep]
    share = len(strength) / max(len(plan), 1)
    lines = [f"{len(plan):,} samples, {len(strength):,} kept ({share:.1%}), {len(plan) - len(strength):,} pruned"]
    if len(strength):
        negative, zero = int((strength < 0).sum()), int((strength == 0).sum())
        full = int((strength == strength.max()).sum())
        linf = plan.made_from.get("margins.norm", "linf") == "linf"
        unit, suffix = (255, "/255") if linf else (1, "")
        lines.append(
            f"strength of the kept: {unit * float(strength.min()):+.3g}{suffix} to {unit * float(strength.max()):+.3g}"
            f"{suffix}, mean {unit * float(strength.mean()):+.3g}{suffix}; {negative:,} negative "
            f"({negative / len(strength):.1%}), {zero:,} zero, {full:,} at the highest ({full / len(strength):.1%})"
        )
        if full < len(strength):  # one strength for all has been told by now
            counts, edges = np.histogram(strength.numpy(), bins=_BINS)
            digits = 2 if linf else 4
            for count, low, high in zip(counts, edges[:-1], edges[1:], strict=True):
                bar = "█" * round(_BAR * count / counts.max())
                bounds = f"{unit * low:+.{digits}f} .. {unit * high:+.{digits}f}"
                lines.append(f"  {bounds:<18}{suffix}  {count:>11,}  {bar}".rstrip())
    usual = list_usual_rules()
    told = {name: value for name, value in plan.made_from.items() if usual.get(name) != value or name in _ALWAYS_TOLD}
    lines += [f"  {name}: {_shorten_value(value)}" for name, value in told.items()]
    lines += ["  everything else as by default"] if len(told) < len(plan.made_from) else []
    if pool is not None:
        lines += _count_classes(pool, keep.numpy())
    return "\n".join(lines)


def list_usual_rules() -> dict[str, str]:
    """Return the rules that a plan is made by unless told otherwise, as its file writes them."""
    groups = {"pruning": asdict(PruneRule()), "strength": asdict(StrengthRule())}
    return {f"{group}.{name}": str(value) for group, rule in groups.items() for name, value in rule.items()}


def _shorten_value(value: str) -> str:
    """Write 0.03137254901960784 as 8/255."""
    try:
        return format_pixel_step(float(value))
    except ValueError:
        return value


def _count_classes(pool: Pool, keep: np.ndarray) -> list[str]:
    lines = []
    for origin in Origin:
        total, kept = int((pool.origin == origin).sum()), int(((pool.origin == origin) & keep).sum())
        if total:
            lines.append(f"{origin.name.lower()}: {kept:,} of {total:,} kept ({kept / total:.1%})")
    before = np.bincount(pool.labels, minlength=pool.num_classes)
    after = np.bincount(pool.labels[keep], minlength=pool.num_classes)
    wide = max(len(name) for name in pool.class_names[:_MOST_CLASSES])
    for name, had, has in zip(pool.class_names[:_MOST_CLASSES], before, after, strict=False):
        lines.append(f"  {name:<{wide}}  {has:>9,} of {had:>9,} kept ({has / max(had, 1):.1%})")
    return lines


def warn_of_imbalance(pool: Pool, keep: torch.Tensor) -> list[str]:
    """Sentences about classes that the plan removes, or whose share of the pool it changes a lot."""
    lost = find_lost_classes(pool, keep)
    sentences = [f"no sample of {', '.join(lost)} is kept"] if lost else []
    before = np.bincount(pool.labels, minlength=pool.num_classes) / len(pool)
    after = np.bincount(pool.labels[keep.numpy()], minlength=pool.num_classes) / int(keep.sum())
    moved = [
        f"{name} {was:.1%} -> {now:.1%}"
        for name, was, now in zip(pool.class_names, before, after, strict=True)
        if was > 0 and now > 0 and not 1 / _BALANCE_SHIFT <= now / was <= _BALANCE_SHIFT
    ]
    if moved:
        sentences.append(f"class balance changes: {', '.join(moved[:5])}{', ...' if len(moved) > 5 else ''}")
    return sentences


def warn_of_threshold(start: float | None, eps: float) -> list[str]:
    """Say so where pruning of easy samples begins near eps, which costs robustness (docs/plans.md)."""
    if start is None or start >= _NEAR * eps:
        return []
    return [
        f"the easy samples that go begin at a margin of {start:.4g}, {start / eps:.2g} eps; samples that near keep the "
        f"model robust: prune less, or give --prune-beyond {_SAFE:g}"
    ]


def compare_plans(one: Plan, two: Plan) -> str:
    """What differs between two plans for the same pool, as lines of text."""
    if one.pool_fingerprint != two.pool_fingerprint:
        return "the plans are for different pools"
    if not torch.equal(one.sample_id, two.sample_id):
        return "the plans name different samples"
    changed = one.strength != two.strength
    both = one.keep & two.keep
    lines = [
        f"kept by both {int(both.sum()):,}, only by the first {int((one.keep & ~two.keep).sum()):,}, "
        f"only by the second {int((~one.keep & two.keep).sum()):,}, by neither {int((~one.keep & ~two.keep).sum()):,}",
        f"strength differs for {int((changed & both).sum()):,} of those kept by both",
    ]
    if bool((changed & both).any()):
        step = (two.strength - one.strength)[changed & both]
        lines.append(f"  by {float(step.min()):+.5f} to {float(step.max()):+.5f}, mean {float(step.mean()):+.5f}")
    names = sorted(set(one.made_from) | set(two.made_from))
    for name in names:
        first, second = one.made_from.get(name, "-"), two.made_from.get(name, "-")
        if first != second:
            lines.append(f"  {name}: {first} | {second}")
    return "\n".join(lines)


def draw_plan(plan: Plan, path: Path, pool: Pool | None = None) -> None:
    """Write a picture: strengths of the kept samples, and with the pool what is kept of each class."""
    with tell_missing("report"):
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from matplotlib.figure import Figure

    panels = 1 if pool is None else 2
    figure = Figure(figsize=(6.4 * panels, 4), layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.subplots(1, panels, squeeze=False)[0]
    strength = plan.strength.numpy()
    keep = plan.keep.numpy()
    edges = np.linspace(strength.min(), strength.max() + 1e-9, BINS + 1)
    axes[0].hist(strength[keep], bins=edges, color=KEPT, label=f"kept ({keep.sum():,})")
    if not keep.all():
        axes[0].hist(strength[~keep], bins=edges, histtype="step", color=PRUNED, hatch="//",
                     label=f"pruned ({(~keep).sum():,})")  # fmt: skip
    axes[0].axvline(0, color="black", linewidth=0.8)
    axes[0].set(xlabel="strength (radius of the attack; negative: towards the label)", ylabel="samples", yscale="log")
    axes[0].legend(frameon=False)
    if pool is not None:
        shown = pool.class_names[:_MOST_CLASSES]
        before = np.bincount(pool.labels, minlength=pool.num_classes)[: len(shown)]
        after = np.bincount(pool.labels[keep], minlength=pool.num_classes)[: len(shown)]
        rows = np.arange(len(shown))
        axes[1].barh(rows, before, color=POOL, label="in the pool")
        axes[1].barh(rows, after, color=KEPT, label="kept", height=0.5)
        axes[1].set_yticks(rows, shown)
        axes[1].invert_yaxis()
        axes[1].set(xlabel="samples")
        axes[1].legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), ncols=2)
    figure.savefig(path, dpi=120)
