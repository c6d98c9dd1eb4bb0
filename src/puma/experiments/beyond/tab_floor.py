"""What do negative strengths do? The lowest strength that the margin may give, with and without pruning.

    puma run tab-floor --preset small-real --seeds 3  # 24 trainings, 36 minutes on one core

Also for the presets cifar10-eps2 and cifar10-eps8. Expect a trade: on Fashion-MNIST (with --samples-seen 50000) a floor
of 0, which helps no sample towards its label, is a point more accurate than the paper's rule and up to a point less
robust, each more than chance explains. No floor is better in both, so the paper's stays the default.
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
