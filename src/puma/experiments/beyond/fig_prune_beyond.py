"""Is it the distance at which pruning begins that costs robustness? Up to 60 % pruned, but only beyond some eps.

    puma run fig-prune-beyond --preset small-real --seeds 3  # 21 trainings, 32 minutes on one core

The results tell the kept share of every row. At 0 nothing limits the pruning. Expect, on Fashion-MNIST (with
--samples-seen 50000), no loss beyond 3 eps, and robustness to fall where samples nearer to the boundary go; pruning
begins at 3.25 eps in the paper.
"""

from puma.experiments.spec import TRADES, Experiment, MarginSpec, ModelSpec, PlanSpec, RowSpec

SHARE = 0.6
_SERIES = "PUMA, up to 60 %"


def _prune_beyond(distance: float) -> ModelSpec:
    return ModelSpec(PlanSpec(easy=SHARE, beyond=distance or None, margins=MarginSpec(TRADES)))


EXPERIMENT = Experiment(
    name="fig-prune-beyond",
    title="PUMA by the distance that pruning leaves alone",
    rows=(
        RowSpec("TRADES", TRADES, baseline=True),
        *(
            RowSpec(f"PUMA 60 % beyond {distance:g} eps", _prune_beyond(distance), series=_SERIES, at=distance)
            for distance in (0.0, 1.0, 1.5, 2.0, 3.0, 4.0)
        ),
    ),
    figure="lines",
    axis="multiples of eps beyond which samples are pruned",
    expect="nothing is reported about it: robustness drops sharply at high fractions.",
)
