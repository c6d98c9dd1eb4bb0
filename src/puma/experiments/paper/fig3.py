"""The perceptron under a strong attack.

    puma run fig3 --preset small  # half a minute on two cores

Expect PE to ruin the student where only the closest percent is kept. At moderate shares it stays better than no
pruning, which is not what the paper shows.
"""

from puma.experiments.spec import PerceptronFigure

EXPERIMENT = PerceptronFigure(
    name="fig3",
    title="Perceptron, eps 0.01: PE and PD by alpha",
    figure="eps0.01",
    expect="PE falls behind no pruning as alpha and the pruned share grow.",
)
