"""What a page opens with: three sentences that say what came out, in words."""

from collections.abc import Sequence

import numpy as np

from puma.evaluation import title_attack
from puma.report.row_tables import describe_images, list_seeds
from puma.report.rows import RowResult, compare_rows, find_baseline, open_plan
from puma.report.samples import SampleTable, count_weakened
from puma.report.statistics import AccuracyDifference, AccuracyEstimate, choose_robust_attack
from puma.report.svg import Markup, join_markup, make_tag
from puma.report.units import USUAL_EPS, write_radius


def write_answer(results: list[RowResult], samples: SampleTable | None, compared: Sequence[str] = ()) -> Markup:
    """Return the sentences: what was trained on what, what was pruned and weakened, what that did.

    Without a run they tell of margins and plans, and of files that were ``compared``.
    """
    if any(result.config or result.evaluations for result in results):
        chosen = _choose_row(results)
        sentences = [_tell_training(chosen, results), _tell_plan(chosen), _tell_outcome(chosen, results)]
    else:
        last = join_markup(" ".join(compared)) if compared else _tell_samples_plan(samples)
        sentences = [_tell_measured(samples, several=len(results) > 1), _tell_margins(samples), last]
    return join_markup(*(make_tag("p", sentence) for sentence in sentences if sentence))


def _choose_row(results: list[RowResult]) -> RowResult:
    """Return the row that is told of: the first with a plan that is compared, else the first evaluated or trained one.

    It goes by the order of the rows alone: the best of several would look better than it is.
    """
    compared = compare_rows(results)
    by_rank = sorted(
        results,
        key=lambda result: (
            result.row.name not in compared,
            not any(seed.plan for seed in result.row.seeds),
            not result.evaluations,
            result.config is None,
        ),
    )
    return by_rank[0]


def _tell_training(chosen: RowResult, results: list[RowResult]) -> Markup:
    """Say which net was trained on what, in the row that is told of and its baseline."""
    config = chosen.config
    if config is None:
        return join_markup("What was trained is not told: no run was found, evaluations alone.")
    first = next((seed for seed in chosen.row.seeds if seed.pools), None)
    count, comma, kind = describe_images(first).partition(", ") if first else ("", "", "")
    images = f" on {count} images ({kind})" if comma else ""
    share = config.generated_fraction
    batch = f", {share:.0%} of every batch generated" if share else ""
    baseline = find_baseline(chosen, results)
    pair = [chosen] if baseline is None or baseline is chosen else [baseline, chosen]
    seeds = list_seeds(seed.seed for result in pair for seed in result.row.seeds if seed.run)
    word = "seeds" if "," in seeds or "to" in seeds else "seed"
    which = f" (the report has {len(results)} rows; this is about {_list_names(pair)})" if len(results) > 2 else ""
    return join_markup(make_tag("strong", config.model), f" was trained{images}{batch}, with {word} {seeds}{which}.")


def _list_names(pair: list[RowResult]) -> str:
    return " and ".join(result.row.short_name for result in pair)


def _tell_plan(chosen: RowResult) -> Markup:
    seed = next((seed for seed in chosen.row.seeds if seed.plan), None)
    name = make_tag("strong", chosen.row.short_name)
    if seed is None or seed.plan is None:
        online = chosen.config.online.mode if chosen.config else "off"
        how = "has no plan: every sample is kept and attacked at full strength" if online == "off" else (
            f"has no plan: what to prune and weaken is decided while training, online {online}")  # fmt: skip
        return join_markup(name, f" {how}.") if chosen.config else join_markup()
    plan = open_plan(seed.plan)
    return join_markup(name, _count_plan(len(plan), int(plan.keep.sum()), *count_weakened(plan)))


def _count_plan(every: int, kept: int, negative: int, weaker: int) -> str:
    weak = f"attacks {weaker:,} of the others less strongly" if weaker else "attacks all others alike"
    towards = f"; {negative:,} of the others it moves towards their label" if negative else ""
    return f" prunes {every - kept:,} of {every:,} samples ({(every - kept) / max(every, 1):.1%}) and {weak}{towards}."


def _tell_outcome(chosen: RowResult, results: list[RowResult]) -> Markup:
    estimates = chosen.estimates()
    robust = choose_robust_attack([result.estimates() for result in results])
    attacks = [attack for attack in ("clean", robust) if attack and attack in estimates]
    if not attacks:
        return join_markup(
            "Nothing was evaluated yet, so there is no accuracy to tell: puma evaluate RUN TEST does that."
        )
    baseline = find_baseline(chosen, results)
    against = compare_rows(results).get(chosen.row.name, {})
    eps, norm = chosen.evaluations[0].eps, chosen.evaluations[0].norm
    words: list[str] = []
    for attack in attacks:
        named = title_attack(attack).removesuffix(")")
        what = ["accuracy"] if attack == "clean" else [f"{named}{', ' if '(' in named else ' ('}eps ",
                                                       write_radius(eps, norm), ")"]  # fmt: skip
        before = baseline.estimates().get(attack) if baseline else None
        told = _tell_change(estimates[attack], before, against.get(attack))
        words += ["; " if words else "", *what, " ", *told]
    words[1 if words[0] == "" else 0] = "Accuracy" if attacks[0] == "clean" else words[1]
    stands_out = baseline is not None and baseline.row.short_name != "baseline"
    end = (f" {baseline.row.short_name} is the baseline." if stands_out else "") if against and baseline else (
        " There is no row to compare it with." if len(results) == 1 or not against else "")  # fmt: skip
    return join_markup(*words, ".", end)


def _tell_change(
    ours: AccuracyEstimate, before: AccuracyEstimate | None, change: AccuracyDifference | None
) -> list[str]:
    now = [make_tag("strong", f"{100 * ours.mean:.1f} %"), _write_interval(ours)]
    if before is None or change is None:
        return ["is ", *now]
    verdict = "no more than chance" if change.within_noise else "more than chance"
    step = f"{100 * change.mean:+.1f}".replace("-", "−")
    return [f"went from {100 * before.mean:.1f} %", _write_interval(before), " to ", *now, f": {step} points, ",
            make_tag("strong", verdict)]  # fmt: skip


def _write_interval(value: AccuracyEstimate) -> Markup:
    return join_markup(" ", make_tag("small", f"[{100 * value.low:.1f}, {100 * value.high:.1f}]"))


def _tell_measured(samples: SampleTable | None, *, several: bool) -> Markup:
    if samples is None:
        return join_markup()
    generated = samples.generated
    share = f" ({generated.mean():.0%} of them generated)" if generated is not None and generated.any() else ""
    if samples.table is None:
        return join_markup(f"{len(samples):,} samples{share} have a plan and no margins here.")
    method = samples.table.made_from.get("method", "an unknown method")
    which = f"{samples.name}: the" if several else "The"
    how = f"{which} margins of {len(samples):,} samples{share} were measured with {method} in {samples.norm}, on "
    return join_markup(how, make_tag("strong", samples.margin_model), ".")


def _tell_margins(samples: SampleTable | None) -> Markup:
    """Say how many samples are wrong, near and far."""
    if samples is None or samples.table is None:
        return join_markup()
    known = samples.margin[~np.isnan(samples.margin)]
    if not len(known):
        return join_markup("No search found a boundary, so there is nothing to tell wrong, near and far by.")
    eps = samples.eps or USUAL_EPS.get(samples.norm, 0.5)
    usual = "" if samples.eps else ", the usual one: no eps is told"
    wrong, near = int((known < 0).sum()), int(((known >= 0) & (known < eps)).sum())
    far, failed = len(known) - wrong - near, len(samples) - len(known)
    shares = [f"{count:,} ({count / len(known):.1%})" for count in (wrong, near, far)]
    return join_markup(
        make_tag("strong", f"{shares[0]} are wrong"), f", {shares[1]} are right but near, within eps ",
        write_radius(eps, samples.norm), f"{usual}, and {shares[2]} are far",
        f"; {failed:,} {'search' if failed == 1 else 'searches'} failed." if failed else ".",
    )  # fmt: skip


def _tell_samples_plan(samples: SampleTable | None) -> Markup:
    if samples is None or samples.plan is None:
        return join_markup(
            "The lowest margins are the first to look at for wrong labels, but most of them are images that this net "
            "finds hard."
        )
    plan = samples.plan
    counted = _count_plan(len(plan), int(plan.keep.sum()), *count_weakened(plan))
    return join_markup("The plan", counted)
