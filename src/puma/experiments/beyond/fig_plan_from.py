"""When should the plan begin? All samples at eps up to a share of the training, the plan from there on.

    puma run fig-plan-from --preset small-real --seeds 3  # 15 trainings, 23 minutes on one core

Also for the preset cifar10-eps2-scratch. At 1 the plan never begins, which is TRADES. Expect, on Fashion-MNIST
(with --samples-seen 50000), the most from a plan that begins at once, and less the later it does.
"""

from puma.experiments.spec import TRADES, Experiment, MarginSpec, ModelSpec, PlanSpec, RowSpec

_SERIES = "PUMA 20 %"
_PLAN = PlanSpec(easy=0.2, margins=MarginSpec(TRADES))

EXPERIMENT = Experiment(
    name="fig-plan-from",
    title="PUMA by the share of the training before its plan",
    rows=(
        *(
            RowSpec(f"PUMA 20 % from {share:g}", ModelSpec(_PLAN, plan_from=share), series=_SERIES, at=share)
            for share in (0.0, 0.25, 0.5, 0.75)
        ),
        RowSpec("TRADES", TRADES, baseline=True, series=_SERIES, at=1.0),
    ),
    figure="lines",
    axis="share of the training before the plan takes effect",
    expect="nothing is reported about it: the plan holds from the first step.",
)
