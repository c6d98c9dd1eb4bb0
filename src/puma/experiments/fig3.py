"""The perceptron under a strong attack.

puma run fig3 --preset small
"""

from puma.experiments.perceptron_figure import PerceptronFigure

EXPERIMENT = PerceptronFigure(
    name="fig3",
    title="Perceptron, eps 0.01: PE and PD by alpha",
    figure="eps0.01",
    expect="PE falls behind no pruning as alpha and the pruned share grow.",
)
