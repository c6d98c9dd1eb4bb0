"""Does the distance alone decide? A random fifth is pruned, drawn from the samples that lie beyond some eps.

    puma run fig-prune-distance --preset small-real --seeds 3  # 21 trainings, 32 minutes on one core

The share that is dropped stays a fifth as long as so many lie beyond (the results tell the kept share), so that only
the distance varies; at 0 the fifth is drawn from all samples. fig-prune-beyond varies distance and share together.
Expect robustness to fall only where samples near the boundary go.
"""

from puma.experiments.spec import TRADES, Experiment, MarginSpec, ModelSpec, PlanSpec, RowSpec

SHARE = 0.2
_SERIES = "PUMA, a random 20 %"


def _prune_far(distance: float) -> ModelSpec:
    return ModelSpec(PlanSpec(random=SHARE, beyond=distance or None, margins=MarginSpec(TRADES)))


EXPERIMENT = Experiment(
    name="fig-prune-distance",
    title="PUMA by the distance of a random fifth that is pruned",
    rows=(
        RowSpec("TRADES", TRADES, baseline=True),
        *(
            RowSpec(f"PUMA, random 20 % beyond {distance:g} eps", _prune_far(distance), series=_SERIES, at=distance)
            for distance in (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
        ),
    ),
    figure="lines",
    axis="multiples of eps beyond which samples are pruned",
    expect="nothing is reported about it.",
)
