"""The method at growing prune fractions, with few, the usual number of, and many generated images.

    puma run fig-data-size --preset small-real  # 21 trainings, half an hour on one core

Expect the paper's picture: accuracy rises up to a pruned fraction of 0.3, robustness is highest around 0.1 and falls
sharply beyond 0.3. One seed: differences of a point are chance.
"""

from puma.experiments.spec import PRUNE_FRACTIONS, Experiment, GeneratedAmount, MarginSpec, ModelSpec, PlanSpec, RowSpec

AMOUNTS: tuple[tuple[GeneratedAmount, str], ...] = (("few", "200K"), ("usual", "1M"), ("many", "10M"))


def _row(amount: GeneratedAmount, size: str, fraction: float) -> RowSpec:
    by = ModelSpec(generated=amount)
    model = ModelSpec(PlanSpec(easy=fraction, margins=MarginSpec(by)), generated=amount)
    series = f"{amount} generated ({size} in the paper)"
    return RowSpec(f"{amount} generated, PUMA {100 * fraction:g} %", model, series=series, at=fraction)


EXPERIMENT = Experiment(
    name="fig-data-size",
    title="PUMA by prune fraction and number of generated images",
    rows=tuple(_row(amount, size, fraction) for amount, size in AMOUNTS for fraction in PRUNE_FRACTIONS),
    figure="lines",
    axis="pruned fraction",
    expect="accuracy rises with the pruned fraction, more so with more images; robustness then drops sharply.",
)
