"""``puma margins``: measure the margins of a pool and look at them."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from puma.cli.flags import check_output
from puma.errors import PumaError

MethodName = Literal["deepfool", "tight", "fast", "fast-ce", "deepfool-classic"]
NormName = Literal["linf", "l2"]


def write_margins(
    pools: Positional[tuple[Path, ...]],
    /,
    *,
    out: Annotated[Path, arg(metavar="FILE.parquet")],
    model: str,
    weights: Path | None = None,
    mean: tuple[float, ...] = (),
    std: tuple[float, ...] = (),
    method: MethodName = "deepfool",
    norm: NormName = "linf",
    batch_size: int = 128,
    cap: float | None = None,
    part_size: int = 8192,
    resume: bool = True,
    device: str = "cpu",
    autocast: Literal["none", "bfloat16", "float16"] = "none",
    compiled: bool = False,
    dry_run: bool = False,
) -> None:
    """Measure the signed distance of every sample of a pool to the decision boundary of a model.

    Run the same command again after an interruption: it goes on where it stopped. Share the work among processes with:
    torchrun --nproc-per-node N -m puma margins ...

    Args:
        pools: folders made by puma data import; several are put together in this order.
        out: parquet file to write.
        model: built-in architecture (see: puma list) or module:function that returns a torch.nn.Module.
        weights: safetensors file or state dict for the model.
        mean: per channel, what images are normalised with, where neither weights nor model tell it.
        std: see --mean.
        method: how to search; deepfool is the best for its cost, tight closest to exact, the others the paper's.
        norm: distance that is measured.
        batch_size: samples that go through the model together.
        cap: do not look farther than this distance; 8/255 is a number too.
        part_size: samples per part; a resumed run repeats at most one part.
        resume: go on from finished parts; --no-resume throws them away.
        device: cpu, cuda or cuda:1; under torchrun, cuda means one device per rank.
        autocast: precision of the search; verdicts are always in fp32.
        compiled: search with a torch.compile'd copy of the model.
        dry_run: check everything and print the settings, measure nothing.
    """
    import torch

    from puma.margins import METHODS, measure_pool
    from puma.models import fingerprint_model
    from puma.pools import open_pools
    from puma.processes import resolve_device
    from puma.training import load_model

    opened = open_pools(pools)
    loaded = load_model(
        model,
        opened.num_classes,
        weights=weights,
        mean=mean or None,
        std=std or None,
        image_shape=opened.image_shape,
    )
    local = os.environ.get("LOCAL_RANK")
    loaded = loaded.to(resolve_device(device, int(local) if local else None))
    if dry_run:
        names = " + ".join(map(str, pools))
        print(f"pool      {names}: {len(opened):,} images of {opened.image_shape}, {opened.num_classes} classes")
        print(f"model     {model}, fingerprint {fingerprint_model(loaded, opened.image_shape)[:16]}, on {device}")
        print(f"method    {method} {dataclasses.asdict(METHODS[method].config)}")
        print(f"norm      {norm}, cap {cap}, batch size {batch_size}, parts of {part_size:,}")
        print(f"out       {out}")
        return
    if not out.absolute().parent.is_dir():
        raise PumaError(f"the folder of --out {out} does not exist; make it first.")
    measure_pool(
        loaded,
        opened,
        out,
        method=method,
        norm=norm,
        batch_size=batch_size,
        cap=cap,
        part_size=part_size,
        resume=resume,
        progress=True,
        autocast=None if autocast == "none" else getattr(torch, autocast),
        compiled=compiled,
        model_path=str(weights or model),
    )
    if os.environ.get("RANK", "0") == "0":
        _tell_margins(out, opened.num_classes)


def show_margins(
    files: Positional[tuple[Path, ...]],
    /,
    *,
    eps: float = 8 / 255,
    bins: int = 40,
    picture: Path | None = None,
    histogram: Path | None = None,
) -> None:
    """Print quantiles, shares and a histogram of margins, and draw the histogram.

    Several files are drawn over each other: the same pool by two methods shows how they differ.

    Args:
        files: margins files.
        eps: radius of the attack to compare with.
        bins: number of bins.
        picture: where to write the PNG; by default beside the first file.
        histogram: also write the bins and counts as JSON.
    """
    from puma.attacks import check_radius
    from puma.margins import (
        count_histograms,
        describe_margins,
        draw_in_terminal,
        draw_picture,
        read_margins,
        save_histograms,
        summarise_margins,
    )

    if not files:
        raise PumaError("give at least one margins file.")
    if bins < 1:
        raise PumaError(f"bins must be at least 1, got {bins}.")
    if picture is not None:
        check_output("--picture", picture, ".png")
    if histogram is not None:
        check_output("--histogram", histogram, ".json")
    tables = {_short_name(path, files): read_margins(path) for path in files}
    check_radius(eps, "--eps", norm=next(iter(tables.values())).made_from["norm"])
    for name, table in tables.items():
        print(describe_margins(summarise_margins(table, eps), name))
    drawn = count_histograms(tables, bins)
    linf = next(iter(tables.values())).made_from["norm"] == "linf"
    unit = 255.0 if linf else 1.0
    print(draw_in_terminal(drawn, unit))
    target = picture or files[0].with_suffix(".png")
    draw_picture(drawn, target, eps=eps, unit=unit, label="margin x 255 (L_inf)" if linf else "margin (L2)")
    print(f"picture: {target}")
    if histogram is not None:
        save_histograms(drawn, histogram)
        print(f"histogram: {histogram}")


def _short_name(path: Path, files: tuple[Path, ...]) -> str:
    names = [file.stem for file in files]
    return path.stem if names.count(path.stem) == 1 else str(path)


def _tell_margins(out: Path, classes: int) -> None:
    from puma.margins import describe_margins, read_margins, summarise_margins, warn_of_model

    table = read_margins(out)
    eps = 8 / 255 if table.made_from["norm"] == "linf" else 0.5
    print(describe_margins(summarise_margins(table, eps), str(out)))
    print(f"look at them with: puma margins show {out}")
    for sentence in warn_of_model(table.margin.numpy(), classes):
        print(f"puma: warning: {sentence}.", file=sys.stderr)
    if not table.crossed.all():
        share = 1 - table.crossed.float().mean()
        print(f"puma: {share:.2%} of the samples have no measured margin, see their status.", file=sys.stderr)
