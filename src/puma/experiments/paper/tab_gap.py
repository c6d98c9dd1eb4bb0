"""Eq. 3: a gap between margin and strength, for margins that read too high.

    puma run tab-gap --preset small-real --seeds 3  # 9 trainings, 14 minutes on one core

Expect no difference. The paper's is small too: 0.15 points of accuracy for 0.37 of robustness.
"""

from puma.experiments.spec import Experiment, PaperValue, RowSpec, specify_puma

EXPERIMENT = Experiment(
    name="tab-gap",
    title="A gap between margin and strength",
    rows=(
        RowSpec("no gap", specify_puma(0.2), PaperValue(90.65, 58.42, 0.09, 0.02), baseline=True),
        RowSpec("gap eps/8", specify_puma(0.2, gap=1 / 8), PaperValue(90.80, 58.05, 0.05, 0.07)),
    ),
    expect="a gap of 1/255 gains a little accuracy and loses a little robustness.",
)
