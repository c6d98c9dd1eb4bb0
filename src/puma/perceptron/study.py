"""What a study consists of: its settings, and the figures with the points and curves that they need."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Literal, get_args

from puma.errors import PumaError, unknown_name
from puma.perceptron.curves import CurveKey
from puma.perceptron.descent import Descent
from puma.perceptron.points import Point
from puma.perceptron.pruning import Pruning, Strategy
from puma.perceptron.sampling import Probe, Task
from puma.perceptron.students import STUDENTS, Logistic, MaxMargin, Student, StudentName
from puma.perceptron.teacher import TEACHERS, TeacherKind

FigureName = Literal[
    "eps0", "eps0.001", "eps0.01", "filtered", "eps0.05", "dense", "gain", "probe", "theory", "crossover"
]
FIGURES: tuple[FigureName, ...] = get_args(FigureName)
PAPER_FIGURES: tuple[FigureName, ...] = FIGURES[:4]

ALPHAS = (0.5, 0.75, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0)
KEEPS = (1.0, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01)
_PROBE_ANGLES = (0.0, 5.0, 15.0, 40.0)
_GAIN_EPS = (0.001, 0.01, 0.05)
_CURVE_POINTS = 22
_CLIFF = (1.4, 1.55, 1.65, 1.75, 1.85, 1.9, 1.95, 2.0, 2.05, 2.1, 2.2, 2.4)


@dataclass(frozen=True)
class Study:
    """Which figures to make, and of what."""

    figures: tuple[FigureName, ...] = FIGURES
    alphas: tuple[float, ...] = ALPHAS
    keeps: tuple[float, ...] = KEEPS
    seeds: int = 10
    dimension: int = 200
    students: tuple[StudentName, ...] = ("logistic",)
    teacher: TeacherKind = "axis"
    probe: Probe = field(default_factory=Probe)
    ridge: float = 1e-5
    descent: Descent = field(default_factory=Descent)

    def __post_init__(self) -> None:
        for kind, chosen, known in (
            ("figure", self.figures, FIGURES),
            ("student", self.students, STUDENTS),
            ("teacher", (self.teacher,), TEACHERS),
        ):
            for name in chosen:
                if name not in known:
                    raise unknown_name(kind, name, list(known))
        for flag, values in (("figures", self.figures), ("alphas", self.alphas), ("students", self.students)):
            if len(values) == 0:
                raise PumaError(f"a study needs at least one of --{flag}, got none.")
        if self.seeds < 1:
            raise PumaError(f"a study needs at least one seed, got {self.seeds}; change --seeds.")
        for alpha in self.alphas:
            Task(alpha, dimension=self.dimension)
        for keep in self.keeps:
            Pruning("pe", keep)
        Logistic(self.ridge)

    def student(self, name: StudentName) -> Student:
        """Return a student by name, with this study's settings."""
        if name == "logistic":
            return Logistic(self.ridge)
        return MaxMargin() if name == "maxmargin" else self.descent

    def curve_alphas(self) -> tuple[float, ...]:
        """Return where theory curves are computed: a little beyond the points, densely at the cliff of PE."""
        low, high = 0.9 * min(self.alphas), 1.1 * max(self.alphas)
        ratio = (high / low) ** (1 / (_CURVE_POINTS - 1))
        even = [float(f"{low * ratio**step:.6g}") for step in range(_CURVE_POINTS)]
        return tuple(sorted({*even, *(alpha for alpha in _CLIFF if low < alpha < high)}))


@dataclass(frozen=True)
class Series:
    """One line of a figure: a strategy and attack, over ``alpha`` and seeds."""

    pruning: Pruning
    eps: float
    teacher: TeacherKind
    student: Student
    probe: Probe = field(default_factory=Probe)

    def points(self, study: Study) -> list[Point]:
        """Return the points of this line."""
        tasks = [Task(a, self.pruning, study.dimension, self.teacher, self.probe) for a in study.alphas]
        return [Point(task, self.student, self.eps, seed) for task in tasks for seed in range(study.seeds)]

    def curve(self, study: Study) -> CurveKey | None:
        """Return the theory of this line: of its own student, or of the hard margin for gradient descent."""
        if self.probe.angle:
            return None
        student = self.student if isinstance(self.student, Logistic) else MaxMargin()
        return CurveKey(self.pruning, self.eps, study.dimension, self.teacher, student, study.curve_alphas())


@dataclass(frozen=True)
class Panel:
    """A part of a figure. ``error`` shows the lines, ``ratio`` them over the same without attack."""

    title: str
    series: tuple[Series, ...]
    kind: Literal["error", "ratio"] = "error"

    def needed(self) -> Iterator[Series]:
        """Yield the lines that must be computed: those shown, and for ratios those without attack."""
        for line in self.series:
            yield line
            if self.kind == "ratio":
                yield without_attack(line)


@dataclass(frozen=True)
class Figure:
    """A figure of the study; the crossover has no panels, it comes from theory alone."""

    name: str
    title: str
    panels: tuple[Panel, ...]


def without_attack(line: Series) -> Series:
    """Return the same line at ``eps = 0``."""
    return Series(line.pruning, 0.0, line.teacher, line.student, line.probe)


def figures_of(study: Study) -> list[Figure]:
    """Return the figures of a study, one per student where the student matters."""
    found = []
    for name in study.figures:
        for student in study.students:
            suffix = f"-{student}" if len(study.students) > 1 else ""
            found.append(_figure(name, study, study.student(student), suffix))
    return list({figure.name: figure for figure in found}.values())


def _figure(name: FigureName, study: Study, student: Student, suffix: str) -> Figure:
    if name == "crossover":
        return Figure(name, "Where pruning easy samples starts to pay", ())
    if name == "theory":
        pair = (0.5, 0.2)
        panels = _strategy_panels(study, MaxMargin(), 0.0, filtered=False, keeps=pair, teacher=study.teacher)
        return Figure(name, "Hard-margin student and its theory", panels)
    if name == "gain":
        sides: tuple[tuple[TeacherKind, str], ...] = (
            ("axis", "teacher on an axis"),
            ("dense", "dense teacher"),
        )
        gains = tuple(
            Panel(title, tuple(Series(Pruning(), eps, teacher, student) for eps in _GAIN_EPS), "ratio")
            for teacher, title in sides
        )
        return Figure(name + suffix, "What adversarial training gains without pruning", gains)
    if name == "probe":
        return Figure(name + suffix, "Margins measured by a probe", _probe_panels(study, student))
    eps = {"eps0": 0.0, "eps0.001": 0.001, "eps0.05": 0.05}.get(name, 0.01)
    teacher: TeacherKind = "dense" if name == "dense" else study.teacher
    filtered = name == "filtered"
    panels = _strategy_panels(study, student, eps, filtered=filtered, keeps=study.keeps, teacher=teacher)
    title = "Standard training" if eps == 0 else f"Adversarial training, $\\varepsilon = {eps:g}$"
    title += ", margins below $\\varepsilon$ filtered out" if filtered else ""
    title += ", dense teacher" if teacher == "dense" else ""
    return Figure(name + suffix, title, panels)


def _strategy_panels(
    study: Study,
    student: Student,
    eps: float,
    *,
    filtered: bool,
    keeps: tuple[float, ...],
    teacher: TeacherKind,
) -> tuple[Panel, ...]:
    strategies: tuple[tuple[Strategy, str], ...] = (
        ("pe", "PE: easy samples pruned"),
        ("pd", "PD: difficult samples pruned"),
    )
    none = Series(Pruning("none", 1.0, filtered), eps, teacher, student)
    pruned = sorted({keep for keep in keeps if keep < 1}, reverse=True)
    return tuple(
        Panel(
            title,
            (
                none,
                *(Series(Pruning(s, keep, filtered), eps, teacher, student, study.probe) for keep in pruned),
            ),
        )
        for s, title in strategies
    )


def _probe_panels(study: Study, student: Student) -> tuple[Panel, ...]:
    strategies: tuple[tuple[Strategy, str], ...] = (("pe", "PE, 20 % kept"), ("pd", "PD, 20 % kept"))
    signed = study.probe.signed
    panels = []
    for s, title in strategies:
        lines = [Series(Pruning(), 0.0, study.teacher, student)]
        for angle in _PROBE_ANGLES:
            probe = Probe(angle, signed) if angle else Probe()
            lines.append(Series(Pruning(s, 0.2), 0.0, study.teacher, student, probe))
        panels.append(Panel(title, tuple(lines)))
    return tuple(panels)
