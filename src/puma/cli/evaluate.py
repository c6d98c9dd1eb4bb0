"""``puma evaluate``: accuracy of a model, clean and under attack."""

import math
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from torch import nn
from tyro.conf import Positional, arg

from puma.errors import PumaError
from puma.evaluation import (
    ATTACKS,
    AttackName,
    Count,
    Evaluation,
    EvaluationConfig,
    check_evaluation_config,
    choose_evaluation_folder,
    choose_rows,
    draw_curve,
    evaluate_pool,
    identify_evaluation,
    measure_pool_curve,
    read_curve,
    write_evaluation,
)
from puma.files import link_to_file
from puma.pools import Pool
from puma.processes import measure_peak_memory, resolve_device
from puma.progress import format_bytes, format_pixel_step, format_seconds
from puma.training import RunFolder, load_model


def evaluate_model(
    model: Positional[str],
    pool: Positional[Path],
    /,
    *,
    eps: float | None = None,
    attacks: Annotated[tuple[AttackName, ...], arg(aliases=["--attack"])] = ("clean", "cw"),
    weights: Path | None = None,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    norm: Literal["linf", "l2"] | None = None,
    out: Path | None = None,
    max_samples: int = 0,
    first: bool = False,
    curve_samples: int = 500,
    masking_samples: int = 128,
    batch_size: int = 256,
    device: str = "cpu",
    seed: int = 0,
    trust_code: bool = False,
    dry_run: bool = False,
) -> None:
    """Evaluate a run or any model; writes metrics.json and curve.png. Cut short, the same command goes on.

    Args:
        model: folder of a run, a built-in architecture (then --weights), or path/to/file.py:Net or module:function.
        pool: the images, such as DIR/test.
        eps: radius of the attacks; a run's own by default.
        attacks: which ones: cw is PGD-40 on the C&W loss, pgd20 is PGD-20 on cross-entropy.
        weights: weights of the model: .safetensors or a state dict.
        mean: per channel, what images are normalised with, where neither weights nor model tell it.
        std: see --mean.
        norm: of the radius; a run's own by default.
        out: folder to write; by default RUN/evaluation-POOLNAME, else ./evaluation, with a hash behind it where
            another evaluation lies there.
        max_samples: evaluate so many only, chosen without regard to their order; 0 takes all.
        first: with --max-samples, take the first ones, as many papers do.
        curve_samples: images for the picture of accuracy by radius; 0 draws none.
        masking_samples: images used to look for signs of gradient masking; 0 does not look.
        batch_size: images at a time.
        device: such as cpu or cuda.
        seed: of the attacks.
        trust_code: import the code that a run names as its model; see docs/security.md.
        dry_run: say what would be done and, by a trial on a few images, what it takes; write nothing.
    """
    if RunFolder(pool).has_config:
        raise PumaError(f"{pool} is a run, not a pool; the model comes first: puma evaluate MODEL POOL.")
    images = Pool.open(pool)
    run_eps, run_norm = _read_attack(Path(model))
    radius = eps if eps is not None else run_eps
    if radius is None:
        raise PumaError("say how strong the attacks are with --eps, such as --eps 8/255.")
    config = EvaluationConfig(
        attacks=attacks,
        norm=norm or run_norm or "linf",
        batch_size=batch_size,
        seed=seed,
        max_samples=max_samples,
        first=first,
        masking_samples=masking_samples,
    )
    check_evaluation_config(config, radius, math.prod(images.image_shape))
    place = resolve_device(device)
    network = load_model(
        model,
        images.num_classes,
        weights=weights,
        mean=mean or None,
        std=std or None,
        image_shape=images.image_shape,
        trust_code=trust_code,
    )
    network = network.to(place)
    key = identify_evaluation(network, images, radius, config)
    usual = Path(model) / f"evaluation-{pool.name}" if Path(model).is_dir() else Path("evaluation")
    folder = choose_evaluation_folder(out or usual, key, strict=out is not None)
    if dry_run:
        samples = len(choose_rows(images, max_samples, first=first))
        strength = f"eps {format_pixel_step(radius)} ({config.norm})"
        print(f"This would evaluate {model} on {samples:,} images of {pool} at {strength},")
        print(f"into {folder}. Nothing was written.")
        print(_describe_work(config))
        print(_estimate_work(network, images, radius, config, samples, curve_samples, place))
        return
    result = evaluate_pool(
        network, images, radius, config, device=place, state_path=folder / "state.json", key=key, show=True
    )
    used = weights or (RunFolder(Path(model)).model if Path(model).is_dir() else None)
    links = [] if used is None else [link_to_file("weights", "weights", used)]
    more: dict[str, Any] = {"model": model, "weights": str(weights) if weights else None, "pool": str(pool)}
    if curve_samples:
        more["curve"] = _draw_curve(network, images, radius, config, curve_samples, place, folder)
    written = write_evaluation(folder, result.to_metrics(links=links, **more))
    print(format_counts(result))
    for sentence in result.warnings:
        print(f"puma: warning: {sentence}.", file=sys.stderr)
    print(f"numbers: {written}")


def _read_attack(folder: Path) -> tuple[float | None, Literal["linf", "l2"] | None]:
    if not RunFolder(folder).has_config:
        return None, None
    config, _ = RunFolder(folder).read()
    return config.attack.eps, config.attack.norm


def _draw_curve(
    network: nn.Module,
    images: Pool,
    radius: float,
    config: EvaluationConfig,
    samples: int,
    device: torch.device,
    folder: Path,
) -> dict[str, list[int]]:
    known = read_curve(folder)
    if known and {total for _, total in known.values()} == {min(samples, len(images))}:
        return known  # drawn by an earlier call of the same evaluation
    counts = measure_pool_curve(
        network,
        images,
        radius,
        max_samples=samples,
        norm=config.norm,
        device=device,
        batch_size=config.batch_size,
        seed=config.seed,
        show=True,
    )
    print(f"picture: {draw_curve(counts, radius, folder / 'curve.png', norm=config.norm)}")
    return {f"{eps:g}": [counted.right, counted.total] for eps, counted in counts.items()}


def format_counts(result: Evaluation) -> str:
    """Say the counts: over all samples, then per class."""
    lines = [f"{'':<14}{'right':>8}{'of':>8}{'accuracy':>10}   95 % interval"]
    lines += [_format_row(name, counted) for name, counted in result.counts().items()]
    names = list(result.right)
    lines += ["", f"{'class':<14}{'samples':>8}" + "".join(f"{name:>12}" for name in names)]
    by_attack = result.classes()
    for label in result.class_names:
        row = [by_attack[name][label] for name in names]
        if row[0].total:
            lines.append(f"{label:<14}{row[0].total:>8}" + "".join(f"{counted.accuracy:>12.1%}" for counted in row))
    return "\n".join(lines)


def _format_row(name: str, counted: Count) -> str:
    low, high = counted.interval
    return f"{name:<14}{counted.right:>8,}{counted.total:>8,}{counted.accuracy:>10.2%}   {low:.2%} to {high:.2%}"


def _describe_work(config: EvaluationConfig) -> str:
    """Say what each attack costs; one after another, an attack gets what the ones before it left right."""
    told = (f"{name:<12}{ATTACKS[name].cost} an image" for name in config.attacks)
    return "\n".join(line if not row else f"{line} that is still right" for row, line in enumerate(told))


_TRIAL = 16  # images of a trial; AutoAttack is not tried, since a few take minutes


def _estimate_work(
    network: nn.Module,
    images: Pool,
    eps: float,
    config: EvaluationConfig,
    samples: int,
    curve_samples: int,
    device: torch.device,
) -> str:
    """Attack a few images and count on to all of them."""
    lines, count = [], min(samples, _TRIAL)
    for name in config.attacks:
        if name == "autoattack":
            lines.append(f"time        {name} is not tried; up to 170 times as long as cw")
            continue
        trial = replace(config, attacks=(name,), max_samples=count, first=False, masking_samples=0)
        begun = time.perf_counter()
        evaluate_pool(network, images, eps, trial, device=device)
        seconds = (time.perf_counter() - begun) / count * samples
        lines.append(f"time        {name} about {format_seconds(seconds)} on one {device}, by a trial on {count}")
    if curve_samples:
        begun = time.perf_counter()
        measure_pool_curve(network, images, eps, max_samples=count, norm=config.norm, device=device)
        seconds = (time.perf_counter() - begun) / count * min(curve_samples, len(images))
        lines.append(f"time        picture about {format_seconds(seconds)}; --curve-samples 0 draws none")
    steps = {
        name: attack.gradient.steps for name, attack in ATTACKS.items() if attack.gradient and name in config.attacks
    }
    forwards = samples * (1 + sum(steps.values()) + len(steps))
    lines.append(
        f"passes      up to {forwards:.3g} forward and {samples * sum(steps.values()):.3g} backward, AutoAttack and "
        "the picture aside"
    )
    lines.append(f"memory      about {format_bytes(measure_peak_memory(device))}, at a batch of {count}")
    lines.append(f"disk        about {format_bytes(30 * samples + 50_000)}")
    return "\n".join(lines)
