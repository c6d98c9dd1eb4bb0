"""Eq. 2 with a smaller or larger eps than the one that is evaluated.

    puma run tab-epsilon --preset small --seeds 3  # 12 trainings, 18 minutes on one core

Expect the paper's order: accuracy falls by about a point with each quarter of eps, robustness rises at first and then
stays.
"""

from puma.experiments.spec import Experiment, Paper, Row, puma

EXPERIMENT = Experiment(
    name="tab-epsilon",
    title="The largest strength in training",
    rows=(
        Row("3/4 eps", puma(0.2, eps=0.75), Paper(91.54, 56.71, 0.06, 0.15)),
        Row("eps", puma(0.2), Paper(90.65, 58.42, 0.09, 0.02), baseline=True),
        Row("5/4 eps", puma(0.2, eps=1.25), Paper(90.04, 58.55, 0.02, 0.32)),
    ),
    expect="accuracy falls and robustness rises with the largest strength.",
)
