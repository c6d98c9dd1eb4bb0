"""``puma margins``: measure the margins of a pool and look at them."""

import dataclasses
import os
import sys
from pathlib import Path
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from puma.cli.flags import check_output, format_settings
from puma.errors import PumaError

MethodName = Literal["deepfool", "tight", "fast", "fast-ce", "deepfool-classic", "predicted"]
NormName = Literal["linf", "l2"]


def measure_files(
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
    measure: float | None = None,
    plan_agreement: float | None = None,
    strength_error: float | None = None,
    prune_easy: float = 0.2,
    eps: float = 8 / 255,
    seed: int = 0,
    part_size: int = 8192,
    resume: bool = True,
    device: str = "cpu",
    autocast: Literal["none", "bfloat16", "float16"] = "none",
    compiled: bool = False,
    trust_code: bool = False,
    dry_run: bool = False,
) -> None:
    """Measure the signed distance of every sample of a pool to the decision boundary of a model.

    Run the same command again after an interruption: it goes on where it stopped. Share the work among processes with:
    torchrun --nproc-per-node N -m puma margins ...

    With --measure 0.02 only a random share is measured, and the rest is predicted from one forward pass each, with a
    half width for every prediction; --plan-agreement 0.98 measures further samples where a plan depends on them.

    Args:
        pools: folders made by puma data import; several are put together in this order.
        out: parquet file to write.
        model: folder of a run, built-in architecture (see: puma list), or path/to/file.py:Net or module:function that
            makes a torch.nn.Module.
        weights: safetensors file or state dict for the model.
        mean: per channel, what images are normalised with, where neither weights nor model tell it.
        std: see --mean.
        method: how to search; deepfool is the best for its cost, tight closest to exact, the others the paper's.
        norm: distance that is measured.
        batch_size: samples that go through the model together.
        cap: do not look farther than this distance; 8/255 is a number too.
        measure: measure only this share, drawn at random, by --method, and predict the others.
        plan_agreement: of the samples, the share that a plan from these margins shall keep or drop as one from measured
            margins would; as many more samples are measured as that takes.
        strength_error: measure further until strengths are off by at most this share of eps, on average.
        prune_easy: share of the easiest samples that the plan will drop, for --plan-agreement.
        eps: the largest strength of the plan, for --strength-error.
        seed: draws the random share.
        part_size: samples per part; a resumed run repeats at most one part.
        resume: go on from finished parts; --no-resume throws them away.
        device: cpu, cuda or cuda:1; under torchrun, cuda means one device per rank.
        autocast: precision of the search; verdicts are always in fp32.
        compiled: search with a torch.compile'd copy of the model.
        trust_code: import the code that a run names as its model; see docs/security.md.
        dry_run: check everything, measure a few samples, print the settings and the cost; write nothing.
    """
    import torch

    from puma.attacks import check_radius
    from puma.margins import METHODS, PredictConfig, describe_task, measure_to_file, predict_instead
    from puma.models import fingerprint_model, start_threads
    from puma.pools import open_pools
    from puma.processes import resolve_device
    from puma.training import load_model

    start_threads()
    if out.suffix != ".parquet":
        raise PumaError(f"--out must end in .parquet, got {out.name!r}; puma margins export makes a .csv of it.")
    check_radius(eps, "--eps", norm=norm)
    predicts = method == "predicted" or any(asked is not None for asked in (measure, plan_agreement, strength_error))
    usual = PredictConfig()
    if not predicts and (prune_easy, eps, seed) != (usual.prune_easy, usual.eps, usual.seed):
        raise PumaError(
            "all samples are measured, so --prune-easy, --eps and --seed say nothing; they go with --measure."
        )
    opened = open_pools(pools)
    loaded = load_model(
        model,
        opened.num_classes,
        weights=weights,
        mean=mean or None,
        std=std or None,
        image_shape=opened.image_shape,
        trust_code=trust_code,
    )
    local = os.environ.get("LOCAL_RANK")
    loaded = loaded.to(resolve_device(device, int(local) if local else None))
    by: str = PredictConfig.measured_by if method == "predicted" else method
    precision = None if autocast == "none" else getattr(torch, autocast)
    path = str(weights or model)
    task = describe_task(loaded, opened, by, norm, batch_size, cap, part_size, precision, compiled, path)
    if predicts:
        share = PredictConfig.measure if measure is None else measure
        if measure is None and os.environ.get("RANK", "0") == "0":
            print(
                f"puma: {share:.0%} of the samples are measured at random first; --measure takes another share.",
                file=sys.stderr,
            )
        task = predict_instead(task, PredictConfig(share, by, plan_agreement, strength_error, prune_easy, eps, seed))
    if dry_run:
        from puma.margins import estimate_measuring, format_measuring

        names = " and ".join(map(str, pools))
        shape = " x ".join(map(str, opened.image_shape))
        verb = "measure" if task.predicting is None else "measure some, and predict the other,"
        images = f"{len(opened):,} images ({shape}, {opened.num_classes} classes) of {names}"
        print(f"This would {verb} {norm} margins of {images}")
        print(f"with {model} by {by}, into {out}. Nothing was written.")
        settings = {by: dataclasses.asdict(METHODS[by].config)}
        if task.predicting is not None:
            settings["predicted"] = dataclasses.asdict(task.predicting)
        settings["also"] = {"cap": cap, "batch_size": batch_size, "part_size": part_size, "device": device}
        print(format_settings(settings))
        print(f"model     fingerprint {fingerprint_model(loaded, opened.image_shape)[:16]}")
        print(format_measuring(estimate_measuring(task), task))
        return
    if not out.absolute().parent.is_dir():
        raise PumaError(f"the folder of --out {out} does not exist; make it first.")
    measure_to_file(task, out, resume=resume, progress=True)
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
    target = picture or files[0].with_suffix(".png")
    check_output("--picture", target, ".png", inputs=files)
    if histogram is not None:
        check_output("--histogram", histogram, ".json", inputs=files, starts=b'{\n "edges"')
    tables = {_short_name(path, files): read_margins(path) for path in files}
    check_radius(eps, "--eps", norm=next(iter(tables.values())).made_from["norm"])
    for name, table in tables.items():
        print(describe_margins(summarise_margins(table, eps), name))
    drawn = count_histograms(tables, bins)
    linf = next(iter(tables.values())).made_from["norm"] == "linf"
    unit = 255.0 if linf else 1.0
    print(draw_in_terminal(drawn, unit))
    draw_picture(drawn, target, eps=eps, unit=unit, label="margin x 255 (L_inf)" if linf else "margin (L2)")
    print(f"picture: {target}")
    if histogram is not None:
        save_histograms(drawn, histogram)
        print(f"histogram: {histogram}")


def compare_margin_files(
    files: Positional[tuple[Path, ...]],
    /,
    *,
    prune_easy: float = 0.2,
    eps: float = 8 / 255,
    picture: Path | None = None,
    heat_map: Path | None = None,
    table: Path | None = None,
) -> None:
    """Print how alike margins of the same samples are: ranks, signs, and the plans that would come of them.

    Args:
        files: two margins files or more; the scatter draws the others against the first.
        prune_easy: share of the easiest samples that the plans drop.
        eps: the largest strength of the plans.
        picture: where to write the scatter (PNG); by default beside the first file, as NAME-compare.png.
        heat_map: where to write the heat map of all pairs (PNG); by default beside it for three files or more.
        table: also write the figures as JSON.
    """
    from puma.margins import (
        compare_margins,
        draw_joint_margins,
        draw_scatter,
        format_comparisons,
        read_margins,
        save_comparisons,
    )

    for flag, path, suffix, starts in (
        ("--picture", picture, ".png", b""),
        ("--heat-map", heat_map, ".png", b""),
        ("--table", table, ".json", b'{\n "pairs"'),
    ):
        if path is not None:
            check_output(flag, path, suffix, inputs=files, starts=starts)
    if heat_map is not None and picture is not None and heat_map.resolve() == picture.resolve():
        raise PumaError(f"--picture and --heat-map are both {picture}; choose another name for one.")
    if len(set(files)) < len(files):
        raise PumaError("a file is given twice; every file is compared with the others only.")
    tables = {_short_name(path, files): read_margins(path) for path in files}
    found = compare_margins(tables, prune_easy=prune_easy, eps=eps)
    linf = next(iter(tables.values())).made_from["norm"] == "linf"
    unit = 255.0 if linf else 1.0
    print(format_comparisons(found, unit))
    label = "margin x 255" if linf else "margin (L2)"
    scatter = picture or files[0].with_name(f"{files[0].stem}-compare.png")
    check_output("--picture", scatter, ".png", inputs=files)
    draw_scatter(tables, scatter, eps=eps, unit=unit, label=label)
    print(f"picture: {scatter}")
    if heat_map is not None or len(files) > 2:
        target = heat_map or files[0].with_name(f"{files[0].stem}-heat-map.png")
        check_output("--heat-map", target, ".png", inputs=files)
        draw_joint_margins(found, target)
        print(f"heat map: {target}")
    if table is not None:
        save_comparisons(found, table)
        print(f"table: {table}")


def export_suspects(
    files: Positional[tuple[Path, ...]],
    /,
    *,
    pool: tuple[Path, ...],
    lowest: int = 200,
    out: Path = Path("suspects.csv"),
    pictures: Path | None = None,
) -> None:
    """Write the samples with the lowest margins as a table to look through: perhaps their labels are wrong.

    One net mostly finds what it finds hard. Give the margins of several nets, best of nets that were not trained on
    the samples: each sample's places in their orders are averaged. cleanlab and FiftyOne read the table.

    Args:
        files: margins files of the same pool, one for each net.
        pool: the pools that were measured, in the same order; for names, labels and paths.
        lowest: how many samples; 0 takes all, the most doubtful first.
        out: the .csv to write.
        pictures: folder to write the samples' images to as PNG, for pools whose images are no files of their own.
    """
    from puma.margins import find_suspects, read_margins, write_suspects
    from puma.pools import open_pools

    if not files:
        raise PumaError("give at least one margins file.")
    check_output("--out", out, ".csv", inputs=files, starts=b"filepath,")
    opened = open_pools(pool)
    tables = [read_margins(path) for path in files]
    suspects = find_suspects(tables, opened, lowest)
    if len({str(table.made_from.get("model")) for table in tables}) < len(tables):
        print("puma: warning: several of these files are of the same net, which counts as often.", file=sys.stderr)
    write_suspects(out, suspects, opened, pictures)
    against = int((2 * suspects.against > suspects.nets).sum())
    nets = "the net disagrees" if suspects.nets == 1 else f"most of {suspects.nets} nets disagree"
    print(
        f"{len(suspects):,} of {len(opened):,} samples, the most doubtful labels first; {nets} with {against:,} of them"
    )
    unit, suffix = (255, "/255") if tables[0].made_from["norm"] == "linf" else (1, "")
    for row in range(min(5, len(suspects))):
        label, said = (opened.class_names[index] for index in (suspects.label[row], suspects.prediction[row]))
        print(
            f"  sample {suspects.sample_id[row]}: {label} -> {said}, margin {unit * suspects.margin[row]:+.3g}{suffix}"
        )
    if suspects.nets == 1:
        print("one net mostly finds what it finds hard: several nets tell more, see the docs on wrong labels")
    print(f"table: {out}")


def _short_name(path: Path, files: tuple[Path, ...]) -> str:
    names = [file.stem for file in files]
    return path.stem if names.count(path.stem) == 1 else str(path)


def _tell_margins(out: Path, classes: int) -> None:
    from puma.margins import describe_margins, read_margin_values, summarise_values, warn_of_model

    margin, status, made_from = read_margin_values(out)
    eps = 8 / 255 if made_from["norm"] == "linf" else 0.5
    summary = summarise_values(margin, status, made_from, eps)
    print(describe_margins(summary, str(out)))
    print(f"look at them with: puma margins show {out}")
    for sentence in warn_of_model(margin, classes):
        print(f"puma: warning: {sentence}.", file=sys.stderr)
    known = summary.statuses["CROSSED"] + summary.statuses["PREDICTED"]
    if known < summary.count:
        share = 1 - known / summary.count
        print(f"puma: {share:.2%} of the samples have no measured margin, see their status.", file=sys.stderr)
