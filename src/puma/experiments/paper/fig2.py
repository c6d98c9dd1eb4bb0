"""The perceptron under a weak attack.

    puma run fig2 --preset small  # half a minute on two cores

Expect the attack to lower the error by some 4 %, without pruning and with PE, but where only the closest percent or two
are kept: there it raises it a little.
"""

from puma.experiments.spec import PerceptronFigure

EXPERIMENT = PerceptronFigure(
    name="fig2",
    title="Perceptron, eps 0.001: PE and PD by alpha",
    figure="eps0.001",
    expect="a weak attack lowers the error without pruning, and PE stops short of the exponential law.",
)
