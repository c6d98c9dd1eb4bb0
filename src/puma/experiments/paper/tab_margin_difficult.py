"""Easy samples pruned by difficulty, strengths by four rules.

    puma run tab-margin-difficult --preset small-real --seeds 3  # 18 trainings, 27 minutes on one core

Expect the paper's order: weaker attacks on samples that are always wrong gain accuracy and robustness, and the margin
for all gains most robustness.
"""

from puma.experiments.spec import Experiment, ModelSpec, PaperValue, PlanSpec, RowSpec, StrengthRule


def _by(rule: StrengthRule) -> ModelSpec:
    return ModelSpec(PlanSpec(easy=0.22, score="cd_clean", strength=rule))


EXPERIMENT = Experiment(
    name="tab-margin-difficult",
    title="Which samples are attacked less strongly, PE 22 % by difficulty",
    rows=(
        RowSpec("eps for all", _by("constant"), PaperValue(88.87, 57.40, 0.10, 0.17), baseline=True),
        RowSpec("eps/8 if always wrong", _by("weak-if-difficult"), PaperValue(89.70, 57.87, 0.08, 0.08)),
        RowSpec("margin if always wrong", _by("margin-if-difficult"), PaperValue(90.66, 58.15, 0.01, 0.01)),
        RowSpec("margin for all", _by("margin"), PaperValue(90.67, 58.15, 0.14, 0.08)),
    ),
    expect="weaker attacks on difficult samples gain both; the margin decides how weak better than a constant.",
)
