"""What do negative strengths do? The lowest strength that the margin may give, with and without pruning.

    puma run tab-floor --preset small --seeds 3  # 24 trainings, 36 minutes on one core

Also for the presets cifar10-eps2 and cifar10-eps8. Expect, from two pilots of one seed on CIFAR-10, that a floor of 0,
which helps no sample towards its label, gains as much accuracy as the paper's rule or more, and that no floor is more
robust.
"""

from puma.experiments.spec import TRADES, Experiment, MarginSpec, ModelSpec, PlanSpec, RowSpec

FLOORS = {"-eps": -1.0, "0": 0.0, "eps/2": 0.5}

EXPERIMENT = Experiment(
    name="tab-floor",
    title="The lowest strength that the margin may give",
    rows=(
        RowSpec("TRADES", TRADES, baseline=True),
        *(
            RowSpec(
                f"PUMA {100 * easy:g} %, floor {name}",
                ModelSpec(PlanSpec(easy=easy, floor=floor, margins=MarginSpec(TRADES))),
            )
            for easy in (0.0, 0.2)
            for name, floor in FLOORS.items()
        ),
    ),
    expect="nothing is reported about it: strengths reach from -eps to eps.",
)
