"""Compares the paper's claims with the runs of a sweep.

`CLAIMS` is a table: each row has the paper's number, a function that measures it in the runs, and
the condition of the verdict "agrees". Scores are means over seeds at each method's best setting on
the dev set. A difference between two methods is compared with the paper's difference on the same
tasks: a verdict is on the paper's number, so that a better result differs, too.

A verdict needs two learning rates for each method, size and task, and two seeds of the chosen
setting; a mean over tasks needs three such tasks. Without enough of them, the claim is open.
"""

from functools import partial
from typing import Any, Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

import numpy as np

from adapter_bert.paper import cells as paper_cells
from adapter_bert.paper import estimates, published
from adapter_bert.paper.ablation_results import ALL, NONE, Ablation
from adapter_bert.paper.cells import MAJORITY, VARIABLE
from adapter_bert.paper.estimates import Condition, Estimate
from adapter_bert.sweeps import selection
from adapter_bert.sweeps.selection import ADAPTERS, FULL, NO_BERT, TOP_LAYERS, Cell, Run

SIZES = (8, 64, 256)  # Section 3.2.
_MIN_TASKS = 3  # A mean over tasks needs these.
_USUAL_SCALE = 1e-2  # Section 3.6.
# The variants that section 3.6 names, as `cells.variants` labels them.
_NAMED_KINDS = ("normalization ", "depth ", "activation ")
_NAMED = ("sites attention", "placement parallel", "interaction multiply, placement parallel")
_MAX_TEXTS = 4  # More values or tasks would fill a table's cell.

_Suites = Dict[str, Any]  # Name → the runs that claims are about; "ablations" → `Ablation`s.


class _Value(NamedTuple):
    """A weighted sum of cells, such as the difference of two, or its mean over tasks.

    Attributes:
      label: its task, size or design.
      gaps: what the cells lack for a verdict.
      paper: the paper's value of the same, if it has one.
    """

    label: str
    terms: Sequence[Tuple[float, Cell]]
    gaps: Sequence[str]
    paper: Optional[Estimate] = None

    @property
    def ours(self) -> Estimate:
        """The sum; equal runs with opposite weights have no error."""
        merged: Dict[Any, Tuple[float, Cell]] = {}
        for weight, cell in self.terms:
            key = cell.task, str(cell.setting)
            merged[key] = merged.get(key, (0.0, cell))[0] + weight, cell
        return estimates.combine(*(term for term in merged.values() if term[0]))

    @property
    def share(self) -> Optional[float]:
        """The mean share of BERT's parameters that the added cells' methods train, if known."""
        shares = [cell.share for weight, cell in self.terms if weight > 0]
        return None if None in shares else float(np.mean(shares))  # type: ignore[arg-type]


class Claim(NamedTuple):
    """A claim: the paper's own number, a function of `_Suites` that measures it, and its condition.

    A claim without a condition is a comparison of ours, not the paper's, and has no verdict.
    `max_share` is the share of BERT's parameters that may be trained.
    """

    title: str
    headline: str
    measure: Callable[..., Iterable[_Value]]
    condition: Optional[Condition] = None
    max_share: Optional[float] = None


def rows(runs: List[Run], ablations: List[Ablation]) -> List[Dict[str, str]]:
    """Returns the rows of all claims with runs: column → text."""
    glue = [run for run in paper_cells.glue(runs) if run.task in published.GLUE]
    suites = {
        "glue": glue,
        "accuracy": [r for r in selection.by_accuracy(glue) if r.score == "accuracy"],
        "further": paper_cells.further(runs),
        "squad": [run for run in runs if run.setting.script == "run_squad.py"],
        "figure 6": selection.by_accuracy(run for run in runs if _is_of_figure_6(run.task)),
        "ablations": [one for one in ablations if _is_of_figure_6(one["task"])],
    }
    measured = [(claim, list(claim.measure(suites=suites))) for claim in CLAIMS]
    return [_row(claim, values) for claim, values in measured if values]


def _is_of_figure_6(task: str) -> bool:
    """Returns whether a task is MNLI, a sample of it, or CoLA."""
    return published.split_sample(task)[0] in ("MNLI", "CoLA")


def _without_gaps(values: List[_Value], minimum: int = 1) -> Tuple[List[_Value], List[str]]:
    """Returns the values that have no gaps, and []; if too few, all and their gaps."""
    complete = [value for value in values if not value.gaps]
    if len(complete) >= minimum:
        return complete, []
    texts = []
    for text in dict.fromkeys(gap for value in values for gap in value.gaps):
        labels = [value.label for value in values if text in value.gaps]
        texts.append(text if len(labels) == len(values) else f"{text} ({_titles(labels)})")
    if len(values) < minimum:
        texts.append("1 task" if len(values) == 1 else f"{len(values)} tasks")
    return values, texts


def _row(claim: Claim, values: List[_Value]) -> Dict[str, str]:
    values, gaps = _without_gaps(values)
    agrees_if = verdict = ""
    ours = _texts([(value.label, value.ours) for value in values])
    papers = [(value.label, value.paper) for value in values if value.paper]
    if claim.condition:
        compared = [
            estimates.combine((1, v.ours), (-1, v.paper)) if v.paper else v.ours for v in values
        ]
        agrees_if, verdict = claim.condition.text, claim.condition.verdict(compared)
        if verdict == "differs" and papers:
            verdict += ", higher" if sum(one.points for one in compared) > 0 else ", lower"
    share = values[0].share
    if claim.max_share and share is not None:
        agrees_if += f"; at most {claim.max_share:.1%} trained"
        ours += f", {share:.2%} trained"
        verdict = "differs, more trained" if share > claim.max_share else verdict
    cells = [cell for value in values for _, cell in value.terms]
    is_open = gaps and claim.condition
    return {
        "claim": claim.title,
        "paper": claim.headline,
        "paper, same tasks": _texts(papers),
        "ours": ours,
        "agrees if": agrees_if,
        "settings tried": f"{_range(map(_settings_tried, cells))} per method and task",
        "seeds": _range(cell.seeds for cell in cells),
        "verdict": "open" if is_open else verdict,
        "open because the runs have only": ", ".join(gaps) if is_open else "",
    }


def _settings_tried(cell: Cell) -> int:
    """Returns the number of settings that the runs, or the searches behind them, tried."""
    trials: Dict[str, int] = {}
    for run in cell.runs:
        key, count = run.setting.key, run.setting.flags.get("trials", 1)
        trials[key] = max(trials.get(key, 1), count)
    return sum(trials.values()) or 1


def _range(counts: Iterable[int]) -> str:
    ranked = sorted(set(counts))
    return " to ".join(dict.fromkeys(map(str, (ranked[0], ranked[-1]))))


def _titles(tasks: Iterable[str]) -> str:
    names = [published.title(task) for task in sorted(tasks, key=published.sort_key)]
    return ", ".join(names) if len(names) <= _MAX_TEXTS else f"{len(names)} tasks"


def _texts(values: Sequence[Tuple[str, Estimate]]) -> str:
    """Returns labelled values as a text; of many, the lowest and the highest."""
    if len(values) > _MAX_TEXTS:
        ranked = sorted(values, key=lambda item: item[1].points)
        ends = " to ".join(f"{value} ({label})" for label, value in (ranked[0], ranked[-1]))
        return f"{ends}, {len(values)} in all"
    return ", ".join(f"{value} ({published.title(label)})" for label, value in values)


def _sum(label: str, *terms: Tuple[float, Cell], paper: Optional[Estimate] = None) -> _Value:
    """Returns a weighted sum of cells, with what they lack for a verdict.

    The baseline without BERT has its own search. Each size and number of layers needs two rates.
    """
    gaps = set()
    levels = {method.label: method.level for method in (ADAPTERS, TOP_LAYERS)}
    for _, cell in terms:
        if cell.sem is None:
            gaps.add("one seed")
        elif cell.seeds == 2 and cell.sem < 1e-6:
            gaps.add("two equal scores")
        rates: Dict[Any, set] = {}
        for run in cell.runs if cell.method != NO_BERT.label else ():
            level = run.setting.flag(levels.get(cell.method))
            rates.setdefault(level, set()).add(run.setting.flag(selection.RATE))
        if any(len(of_level) < 2 for of_level in rates.values()):
            gaps.add("one learning rate")
    return _Value(label, terms, sorted(gaps), paper)


def _mean(prefix: str, values: List[_Value], min_tasks: int = _MIN_TASKS) -> _Value:
    """Returns the mean over tasks, of those without gaps if they are enough."""
    values, gaps = _without_gaps(values, min_tasks)
    weight = 1 / len(values)
    papers = [(weight, value.paper) for value in values if value.paper]
    return _Value(
        prefix + _titles(value.label for value in values),
        [(weight * sign, cell) for value in values for sign, cell in value.terms],
        gaps,
        estimates.combine(*papers) if papers else None,
    )


def _compare(
    suite: str,
    of: Any,
    minus: Any = (FULL,),
    *,
    suites: _Suites,
    paper: Any = None,
    by_task: bool = False,
    by_size: bool = False,
) -> Iterable[_Value]:
    """Measures a method's score minus another's: its mean over a suite's tasks.

    Args:
      suite, suites: a name of `_Suites`, and these.
      of, minus: tuples of the arguments of `cells.of_method` besides the runs.
      paper: task → the paper's value; other tasks are left out.
      by_task: whether each task counts by itself.
      by_size: whether each size of adapters counts; otherwise, the best of each task.
    """
    split = selection.TEST if suite == "further" else selection.VALIDATION
    first, second = (paper_cells.of_method(suites[suite], *method) for method in (of, minus))
    others = {cell.task: cell for cell in paper_cells.cells_of(minus[0].label, second, split)}
    sizes = selection.group_by(first, lambda run: by_size and run.setting.flag(selection.SIZE))
    for size, runs in sizes.items():
        values = [
            _sum(cell.task, (1, cell), (-1, others[cell.task]), paper=paper and paper[cell.task])
            for cell in paper_cells.cells_of(of[0].label, runs, split)
            if cell.task in others and (not paper or cell.task in paper)
        ]
        if by_task:
            yield from values
        elif values:
            yield _mean(f"size {size}: " if by_size else "", values)


def _moderate_sizes(suites: _Suites) -> Iterable[_Value]:
    """Measures each size that trains 0.5 to 5% of BERT, minus full fine-tuning, on GLUE."""
    values = _compare("glue", (ADAPTERS,), suites=suites, by_size=True)
    return [value for value in values if 0.005 <= (value.share or 0) <= 0.05]


def _variants(suites: _Suites, are_named: bool) -> Iterable[_Value]:
    """Measures the variants that section 3.6 names, or the others, minus the default adapter."""
    values: Dict[str, List[_Value]] = {}
    for cell, default in paper_cells.variants(suites["accuracy"]):
        is_named = cell.method in _NAMED or cell.method.startswith(_NAMED_KINDS)
        if default and cell.method != paper_cells.DEFAULT and is_named == are_named:
            of_variant = values.setdefault(f"{cell.method}, size {cell.level}: ", [])
            of_variant.append(_sum(cell.task, (1, cell), (-1, default)))
    return [_mean(name, of_variant, min_tasks=1) for name, of_variant in values.items()]


def _removed(
    spans: Callable[[int], Dict[str, Tuple[str, str]]], suites: _Suites, only: str = ""
) -> Iterable[_Value]:
    """Measures differences of an ablation's scores, of figure 6's tasks or of one `only`.

    `spans`: function of the number of layers; label → names of the scores, first minus second.
    """
    for one in suites["ablations"]:
        scores, task = one["scores"], published.title(one["task"])
        for label, (first, second) in spans(one["num_layers"]).items():
            if {first, second} <= scores.keys() and task.startswith(only):
                # The difference of each model, whose scores are not independent.
                change = selection.mean_over_seeds(np.subtract(scores[first], scores[second]))
                yield _sum(task + label.format(first), (1, Cell("", None, task, "", *change)))


def _scales(suites: _Suites, is_small: bool) -> Iterable[_Value]:
    """Measures accuracies at each smaller initial scale, or the largest, minus the usual one's."""
    cells = paper_cells.curve(suites["figure 6"], ADAPTERS, selection.INIT_SCALE)
    for task, of_task in selection.group_by(cells, lambda cell: cell.task).items():
        at = {cell.level: cell for cell in of_task}
        if _USUAL_SCALE in at and min(at) < _USUAL_SCALE < max(at):
            small = [scale for scale in sorted(at) if scale < _USUAL_SCALE]
            for scale in small if is_small else [max(at)]:
                label = published.title(task) + (f", {scale:g}" if is_small else "")
                yield _sum(label, (1, at[scale]), (-1, at[_USUAL_SCALE]))


def _large_scales_of_cola(suites: _Suites) -> Iterable[_Value]:
    """Measures the change by large scales on CoLA, minus that on MNLI."""
    values = list(_scales(suites, is_small=False))
    for cola in (value for value in values if value.label == "CoLA"):
        for other in (value for value in values if value is not cola):
            minus = [(-weight, cell) for weight, cell in other.terms]
            yield _sum(f"CoLA, {other.label}", *cola.terms, *minus)


def _paper(label: str) -> Dict[str, Estimate]:
    """Returns the paper's differences of a method from full fine-tuning, by task."""
    ours, full = (
        {task: Estimate(value, sem or 0.0) for task, (value, sem) in published.scores(one).items()}
        for one in (label, FULL.label)
    )
    return {task: estimates.combine((1, score), (-1, full[task])) for task, score in ours.items()}


_SAME = Condition("the paper's value, with a tolerance of 1", 0, 0, tolerance=1)
_BELOW_0, _ABOVE_0 = Condition("below 0", high=0), Condition("above 0", low=0)
_SIMILAR = Condition("each within ±1", -1, 1)

CLAIMS = (
    # Table 1, section 3.2.
    Claim(
        "GLUE: adapters, best size per task, minus full fine-tuning",
        "−0.4, 3.6% trained",
        partial(_compare, "glue", (ADAPTERS, SIZES), paper=_paper(published.BEST_SIZE)),
        _SAME,
        max_share=0.036,
    ),
    Claim(
        "GLUE: adapters of size 64, minus full fine-tuning",
        "−0.8",
        partial(_compare, "glue", (ADAPTERS, (64,)), paper=_paper("adapters 64")),
        _SAME,
    ),
    # Table 2, section 3.3.
    *(
        Claim(
            f"Further tasks: {title}, minus full fine-tuning, test accuracy",
            headline,
            partial(_compare, "further", (method,), paper=_paper(method.label)),
            _SAME,
        )
        for title, headline, method in (
            ("adapters", "−0.4 (17 tasks)", ADAPTERS),
            ("top layers, best number per task", "+0.3 (17 tasks)", VARIABLE),
            ("no-BERT baseline", "−1.0 (17 tasks)", NO_BERT),
        )
    ),
    # Section 3.4.
    Claim(
        "GLUE: top layer alone, minus adapters of size 64, accuracy",
        "−5.9 (MNLI-m); on GLUE, it decreases dramatically",
        partial(_compare, "accuracy", (TOP_LAYERS, (1,)), (ADAPTERS, (64,)), by_task=True),
        _BELOW_0._replace(text="below 0 on each task"),
    ),
    Claim(
        "GLUE: LayerNorms alone, minus full fine-tuning, accuracy",
        "about −3.5 (CoLA), −4 (MNLI); it does not say from what",
        partial(
            _compare,
            "accuracy",
            (selection.LAYER_NORM,),
            paper={"CoLA": Estimate(-3.5), "MNLI-m": Estimate(-4.0)},
            by_task=True,
        ),
        _SAME,
    ),
    Claim(
        "GLUE: adapters that train 0.5 to 5%, minus full fine-tuning",
        "within 1 of published results of BERT-Large",
        _moderate_sizes,
        Condition("each size at least −1, with a tolerance of 1", low=-1, tolerance=1),
    ),
    # Section 3.5.
    *(
        Claim(
            f"SQuAD: F1 of adapters of size {size}, minus full fine-tuning",
            headline,
            partial(_compare, "squad", (ADAPTERS, (size,)), paper=paper, by_task=True),
            _SAME,
        )
        for size, headline, paper in (
            (64, "−0.3", {"SQuAD": Estimate(-0.3)}),
            (2, "−0.8", {"SQuAD": Estimate(-0.8)}),
        )
    ),
    # Section 3.6.
    Claim(
        "Removing one layer's adapters: change in accuracy",
        "at worst −2% (MNLI, CoLA)",
        partial(_removed, lambda n: {f", layer {i}": (f"{i}-{i}", ALL) for i in range(n)}),
        Condition("each layer at least −2, with a tolerance of 1", low=-2, tolerance=1),
    ),
    Claim(
        "Removing the adapters of the lowest 5 of 12 layers: change in accuracy",
        "barely affects (layers 0-4, MNLI)",
        # Five twelfths of the layers, rounded down.
        partial(_removed, lambda n: {", layers {}": (f"0-{5 * n // 12 - 1}", ALL)}, only="MNLI"),
        Condition("at least −1, with a tolerance of 1", low=-1, tolerance=1),
    ),
    Claim(
        "Removing the lower half's adapters, minus removing the upper half's, accuracy",
        "lower layers have a smaller impact (MNLI, CoLA)",
        partial(_removed, lambda n: {"": (f"0-{n // 2 - 1}", f"{n - n // 2}-{n - 1}")}),
        _ABOVE_0,
    ),
    Claim(
        "Removing all adapters: accuracy, minus the majority class's",
        "0 (MNLI, CoLA)",
        partial(_removed, lambda n: {"": (NONE, MAJORITY)}),
        _SIMILAR,
    ),
    Claim(
        "Initial standard deviations below 1e-2, minus 1e-2, accuracy",
        "robust (MNLI, CoLA)",
        partial(_scales, is_small=True),
        _SIMILAR,
    ),
    Claim(
        "The largest initial standard deviation, minus 1e-2, accuracy",
        "degrades (MNLI, CoLA)",
        partial(_scales, is_small=False),
        _BELOW_0,
    ),
    Claim(
        "The largest initial standard deviation: the change on CoLA, minus that on MNLI",
        "degrades more on CoLA",
        _large_scales_of_cola,
        _BELOW_0,
    ),
    Claim(
        "GLUE: mean accuracy of adapters of sizes 8 and 256, minus size 64",
        "+0.4 and −0.1 (8: 86.2, 64: 85.8, 256: 85.7)",
        partial(_compare, "accuracy", (ADAPTERS, (8, 256)), (ADAPTERS, (64,)), by_size=True),
        Condition("each within ±0.5, with a tolerance of 0.5", -0.5, 0.5, tolerance=0.5),
    ),
    Claim(
        "GLUE: the paper's variants of the adapter, minus the default, accuracy",
        "similar",
        partial(_variants, are_named=True),
        _SIMILAR,
    ),
    # Ours: the paper does not name these variants, and a converted encoder's pooler is untrained.
    Claim(
        "GLUE: other variants of the adapter, minus the default, accuracy",
        "",
        partial(_variants, are_named=False),
    ),
    *(
        Claim(
            f"GLUE: adapters{title}, pooler trained, minus full fine-tuning",
            "",
            partial(_compare, "glue", (ADAPTERS, sizes, True)),
        )
        for title, sizes in ((", best size per task", SIZES), (" of size 64", (64,)))
    ),
)
