"""Eq. 2 with a smaller or larger eps than the one that is evaluated.

    puma run tab-epsilon --preset small-real --seeds 3  # 12 trainings, 18 minutes on one core

Expect the paper's order: accuracy falls by about a point with each quarter of eps, robustness rises at first and then
stays.
"""

from puma.experiments.spec import Experiment, PaperValue, RowSpec, specify_puma

EXPERIMENT = Experiment(
    name="tab-epsilon",
    title="The largest strength in training",
    rows=(
        RowSpec("3/4 eps", specify_puma(0.2, eps=0.75), PaperValue(91.54, 56.71, 0.06, 0.15)),
        RowSpec("eps", specify_puma(0.2), PaperValue(90.65, 58.42, 0.09, 0.02), baseline=True),
        RowSpec("5/4 eps", specify_puma(0.2, eps=1.25), PaperValue(90.04, 58.55, 0.02, 0.32)),
    ),
    expect="accuracy falls and robustness rises with the largest strength.",
)
