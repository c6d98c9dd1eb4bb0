"""Pruning by difficulty alone, at full strength: easy samples, difficult ones, both, or random ones.

    puma run tab-double-pruning --preset small-real --seeds 3  # 15 trainings, 23 minutes on one core

Expect PE to gain accuracy and lose robustness, as in the paper, and PD to lose accuracy. Other than there, PD gains two
points of robustness, and so does PE + PD. The paper's PD does so in its first 100 to 150 epochs, when generated images
have been visited about as often as in all of this training: 3.5 times.
"""

from puma.experiments.spec import TRADES, Experiment, PaperValue, RowSpec, specify_pruning

EXPERIMENT = Experiment(
    name="tab-double-pruning",
    title="Pruning by classification difficulty at full strength",
    rows=(
        RowSpec("no pruning", TRADES, PaperValue(87.87, 58.57, 0.10, 0.08), baseline=True),
        RowSpec("random 22 %", specify_pruning(random=0.22), PaperValue(87.64, 58.27, 0.04, 0.05)),
        RowSpec("PD 12 %", specify_pruning(difficult=0.12), PaperValue(86.05, 58.40, 0.10, 0.19)),
        RowSpec("PE 22 %", specify_pruning(easy=0.22), PaperValue(88.87, 57.40, 0.10, 0.17)),
        RowSpec("PE 22 % + PD 12 %", specify_pruning(easy=0.22, difficult=0.12), PaperValue(87.13, 58.39, 0.10, 0.22)),
    ),
    expect="PE gains accuracy and loses robustness, PD loses accuracy, both together are no better than random.",
)
