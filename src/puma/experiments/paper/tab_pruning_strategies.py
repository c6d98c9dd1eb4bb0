"""What to prune by, when strengths follow the margin.

    puma run tab-pruning-strategies --preset small-real --seeds 3  # 15 trainings, 23 minutes on one core

Expect the paper's order: with strengths by margin accuracy gains two points over random pruning however samples are
pruned, and pruned by margin the model is the most robust.
"""

from puma.experiments.spec import Experiment, ModelSpec, PaperValue, PlanSpec, RowSpec, specify_pruning, specify_puma

EXPERIMENT = Experiment(
    name="tab-pruning-strategies",
    title="Pruning at random, by difficulty, by margin",
    rows=(
        RowSpec(
            "random 22 %, eps for all",
            specify_pruning(random=0.22),
            PaperValue(87.64, 58.27, 0.04, 0.05),
            baseline=True,
        ),
        RowSpec(
            "PUMA 22 %, by difficulty",
            ModelSpec(PlanSpec(easy=0.22, score="cd_clean")),
            PaperValue(90.67, 58.15, 0.14, 0.08),
        ),
        RowSpec("PUMA 22 %, by margin", specify_puma(0.22), PaperValue(90.65, 58.42, 0.09, 0.02)),
    ),
    expect="pruning by margin keeps the robustness of random pruning with three points more accuracy.",
)
