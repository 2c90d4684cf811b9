"""Compares the paper's claims with the runs of a sweep.

`CLAIMS` is a table: each row has the paper's number, a function that measures it in the runs, and
the condition of the verdict "agrees". Scores are means over seeds at each method's best setting on
the dev set. A difference between two methods is compared with the paper's difference on the same
tasks: a verdict is on the paper's number, so that a better result differs, too.

A verdict needs two learning rates for each method, size and task, and two seeds of the chosen
setting; a mean over GLUE or the further tasks needs three such tasks. Only tasks that have these
count; without enough of them, the claim is open. Two seeds with equal scores have no usable error.
An ablation compares a model with itself and needs two seeds only.
"""

import functools
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    NamedTuple,
    Optional,
    Sequence,
    Tuple,
)

from adapter_bert.paper import cells as paper_cells
from adapter_bert.paper import estimates, published
from adapter_bert.paper.ablation_results import Ablation
from adapter_bert.paper.cells import VARIABLE, Cell
from adapter_bert.paper.estimates import Condition, Estimate
from adapter_bert.sweeps import selection
from adapter_bert.sweeps.selection import (
    ADAPTERS,
    FULL,
    INIT_SCALE,
    LAYER_NORM,
    LAYERS,
    NO_BERT,
    RATE,
    SIZE,
    TEST,
    TOP_LAYERS,
    VALIDATION,
    Method,
    Run,
)

_MIN_TASKS = 3  # A mean over tasks needs these.
SIZES = (8, 64, 256)  # Section 3.2.
_USUAL_SCALE = 1e-2  # Section 3.6.
# The variants that section 3.6 names, as `cells.variants` labels them.
_NAMED_KINDS = ("normalization ", "depth ", "activation ")
_NAMED = ("sites attention", "placement parallel", "interaction multiply, placement parallel")
_MAX_TEXTS = 4  # More values or tasks would fill a table's cell.


class Value(NamedTuple):
    """A value that runs have for a claim.

    Attributes:
      label: its task, size or design.
      paper: the paper's value of the same, if it has one.
      gaps: what the runs lack for a verdict.
      tried: numbers of settings tried, for each method and task.
      seeds: numbers of seeds of the chosen settings.
      share: the share of BERT's parameters that the first method trains, if known.
    """

    label: str
    ours: Estimate
    paper: Optional[Estimate] = None
    gaps: Sequence[str] = ()
    tried: Sequence[int] = (1,)
    seeds: Sequence[int] = ()
    share: Optional[float] = None


class _Runs(NamedTuple):
    """The runs that claims are about, by suite of tasks."""

    glue: List[Run]
    glue_accuracy: List[Run]
    further: List[Run]
    squad: List[Run]
    figure_6: List[Run]
    ablations: List[Ablation]


class Claim(NamedTuple):
    """A claim: what is measured, the paper's own number, the measurement, and how it is judged.

    A claim without a condition is a comparison of ours, not the paper's, and has no verdict.
    """

    title: str
    headline: str
    measure: Callable[[_Runs], Iterable[Value]]
    condition: Optional[Condition] = None
    max_share: Optional[float] = None


def rows(runs: List[Run], ablations: List[Ablation]) -> List[Dict[str, str]]:
    """Returns the rows of all claims with runs, as texts.

    A row has the claim, the paper's own number, its value on the tasks that were run ("" if it has
    none), our value, the condition of "agrees", the numbers of settings tried and of seeds of the
    chosen settings, and the verdict: "agrees", "differs", "unclear", or "open: " and what is
    missing. Condition and verdict of a comparison of ours are "".
    """
    glue = [run for run in paper_cells.glue(runs) if run.task in published.GLUE]
    accurate = paper_cells.by_accuracy(glue)
    suites = _Runs(
        glue=glue,
        glue_accuracy=[run for run in accurate if run.score == "accuracy"],
        further=[run for run in paper_cells.further(runs) if run.task in published.TABLE_2],
        squad=[r for r in runs if r.setting.script == "run_squad.py" and r.task == "SQuAD"],
        figure_6=paper_cells.by_accuracy([run for run in runs if _is_of_figure_6(run.task)]),
        ablations=[
            one
            for one in ablations
            if one.score == "accuracy" and one.majority is not None and _is_of_figure_6(one.task)
        ],
    )
    measured = ((claim, *_without_gaps(list(claim.measure(suites)))) for claim in CLAIMS)
    return [_row(claim, values, gaps) for claim, values, gaps in measured if values]


def _is_of_figure_6(task: str) -> bool:
    """Returns whether a task is MNLI, a sample of it, or CoLA."""
    return published.split_sample(task)[0] in ("MNLI", "CoLA")


def _row(claim: Claim, values: List[Value], gaps: List[str]) -> Dict[str, str]:
    agrees_if = verdict = ""
    ours = _texts({value.label: value.ours for value in values})
    papers = {value.label: value.paper for value in values if value.paper}
    if claim.condition:
        compared = [v.ours.minus(v.paper) if v.paper else v.ours for v in values]
        agrees_if, verdict = claim.condition.text, claim.condition.verdict(compared)
        if verdict == "differs" and papers:
            verdict += ", higher" if sum(one.value for one in compared) > 0 else ", lower"
    share = values[0].share
    if claim.max_share and share is not None:
        agrees_if += f"; at most {claim.max_share:.1%} trained"
        ours += f", {share:.2%} trained"
        verdict = "differs, more trained" if share > claim.max_share else verdict
    return {
        "claim": claim.title,
        "paper": claim.headline,
        "paper, same tasks": _texts(papers),
        "ours": ours,
        "agrees if": agrees_if,
        "settings tried": f"{_range(_joined(v.tried for v in values))} per method and task",
        "seeds": _range(_joined(value.seeds for value in values)),
        "verdict": f"open: {', '.join(gaps)}" if gaps and claim.condition else verdict,
    }


def _joined(lists: Iterable[Sequence[int]]) -> List[int]:
    return [item for one in lists for item in one]


def _without_gaps(values: List[Value], minimum: int = 1) -> Tuple[List[Value], List[str]]:
    """Returns the values that have no gaps, and []; if too few, all and their gaps."""
    complete = [value for value in values if not value.gaps]
    if len(complete) >= minimum:
        return complete, []
    texts = []
    for text in dict.fromkeys(gap for value in values for gap in value.gaps):
        labels = [value.label for value in values if text in value.gaps]
        texts.append(text if len(labels) == len(values) else f"{text} ({_titles(labels)})")
    if len(values) < minimum:
        texts.append(paper_cells.pluralize(len(values), "task"))
    return values, texts


def _difference(one: Cell, other: Cell, label: str = "", paper: Optional[Estimate] = None) -> Value:
    """Returns the difference of two cells; 0 without an error if they are the same runs."""
    first, second = (estimates.over_seeds(cell.choice.values) for cell in (one, other))
    gaps = {first.gap, second.gap, *_gaps(one), *_gaps(other)} - {""}
    return Value(
        label or one.task,
        Estimate(0.0) if one.choice == other.choice else first.minus(second),
        paper,
        sorted(gaps),
        [_settings_tried(cell.runs) for cell in (one, other)],
        [one.choice.seeds, other.choice.seeds],
        one.choice.share,
    )


def _mean(values: List[Value], minimum: int = _MIN_TASKS, prefix: str = "") -> List[Value]:
    """Returns the mean over tasks, of those without gaps if they are enough; [] without any."""
    values, gaps = _without_gaps(values, minimum)
    if not values:
        return []
    papers = [value.paper for value in values if value.paper]
    shares = [value.share for value in values if value.share is not None]
    return [
        Value(
            prefix + _titles(value.label for value in values),
            estimates.mean([value.ours for value in values]),
            estimates.mean(papers) if papers else None,
            gaps,
            _joined(value.tried for value in values),
            _joined(value.seeds for value in values),
            sum(shares) / len(shares) if len(shares) == len(values) else None,
        )
    ]


def _gaps(cell: Cell) -> Iterator[str]:
    """Yields what a cell's runs lack for a verdict, besides seeds.

    The baseline without BERT has its own search. Each size and number of layers needs two rates.
    """
    levels = {ADAPTERS.label: SIZE, TOP_LAYERS.label: LAYERS}
    level = levels.get(cell.method)
    rates: Dict[object, set] = {}
    for run in cell.runs:
        rates.setdefault(run.setting.flag(level), set()).add(run.setting.flag(RATE))
    if cell.method != NO_BERT.label and min(map(len, rates.values())) < 2:
        yield "one learning rate"


def _settings_tried(runs: List[Run]) -> int:
    """Returns the number of settings that the runs, or the searches behind them, tried."""
    trials: Dict[str, int] = {}
    for run in runs:
        key, count = run.setting.key, run.setting.flags.get("trials", 1)
        trials[key] = max(trials.get(key, 1), count)
    return sum(trials.values())


class _Side(NamedTuple):
    """Selects one side of a comparison: a method's cells, one for each task of a suite."""

    suite: str  # A field of `_Runs`.
    method: Method
    sizes: Tuple[int, ...] = ()
    layers: Optional[int] = None
    pooler: bool = False

    def cells(self, runs: _Runs) -> Dict[str, Cell]:
        """Returns task → its cell."""
        suite = getattr(runs, self.suite)
        chosen = paper_cells.of_method(suite, self.method, self.sizes, self.pooler)
        if self.layers:
            chosen = [run for run in chosen if run.setting.flag(LAYERS) == self.layers]
        split = TEST if self.suite == "further" else VALIDATION
        return {cell.task: cell for cell in paper_cells.cells_of(self.method.label, chosen, split)}


def _by_task(
    first: _Side, second: _Side, paper: Optional[Dict[str, Estimate]] = None
) -> Callable[[_Runs], List[Value]]:
    """Returns a measurement of the sides' differences by task; of the paper's tasks, if any."""

    def measure(runs: _Runs) -> List[Value]:
        others, papers = second.cells(runs), paper or {}
        return [
            _difference(cell, others[task], paper=papers.get(task))
            for task, cell in first.cells(runs).items()
            if task in others and (task in papers or not papers)
        ]

    return measure


def _mean_of(*sides_and_paper: Any) -> Callable[[_Runs], List[Value]]:
    """Returns a measurement of the mean of `_by_task` over tasks."""
    return lambda runs: _mean(_by_task(*sides_and_paper)(runs))


def _by_size(runs: _Runs, suite: str, second: _Side) -> Iterator[Tuple[int, Value]]:
    """Yields the mean difference of each size of adapters from another side."""
    found = {
        run.setting.flag(SIZE) for run in paper_cells.of_method(getattr(runs, suite), ADAPTERS)
    }
    for size in sorted(found):
        values = _by_task(_Side(suite, ADAPTERS, (size,)), second)(runs)
        for mean in _mean(values, prefix=f"size {size}: "):
            yield size, mean


def _sizes(runs: _Runs) -> List[Value]:
    """Measures section 3.6's mean accuracies of sizes 8 and 256, minus that of size 64."""
    means = _by_size(runs, "glue_accuracy", _Side("glue_accuracy", ADAPTERS, (64,)))
    return [mean for size, mean in means if size in (8, 256)]


def _moderate_sizes(runs: _Runs) -> List[Value]:
    """Measures each size that trains 0.5 to 5% of BERT, minus full fine-tuning, on GLUE."""
    means = _by_size(runs, "glue", _FULL_GLUE)
    return [mean for _, mean in means if 0.005 <= (mean.share or 0) <= 0.05]


def _variants(runs: _Runs, *, are_named: bool) -> Iterator[Value]:
    """Measures the variants that section 3.6 names, or the others, minus the default adapter."""
    by_variant: Dict[str, List[Value]] = {}
    for cell, default in paper_cells.variants(runs.glue_accuracy):
        is_named = cell.method in _NAMED or cell.method.startswith(_NAMED_KINDS)
        if default and cell.method != paper_cells.DEFAULT and is_named == are_named:
            name = f"{cell.method}, size {cell.level}: "
            by_variant.setdefault(name, []).append(_difference(cell, default))
    for name, values in by_variant.items():
        yield from _mean(values, minimum=1, prefix=name)


def _of_ablations(
    values_of: Callable[[Ablation], Dict[str, Sequence[float]]],
) -> Callable[[_Runs], Iterator[Value]]:
    """Returns a measurement of figure 6's ablations, from their values, one for each model."""

    def measure(runs: _Runs) -> Iterator[Value]:
        for one in runs.ablations:
            for label, scores in values_of(one).items():
                ours = estimates.over_seeds(scores)
                gaps = [ours.gap] if ours.gap else []
                yield Value(published.title(one.task) + label, ours, gaps=gaps, seeds=[len(scores)])

    return measure


def _single_layers(one: Ablation) -> Dict[str, Sequence[float]]:
    return {f", layer {layer}": one.changes(layer, layer) for layer in range(one.num_layers)}


def _lowest_layers(one: Ablation) -> Dict[str, Sequence[float]]:
    """Returns the changes by removing five twelfths of the layers, rounded down, on MNLI."""
    count = 5 * one.num_layers // 12
    is_mnli = published.split_sample(one.task)[0] == "MNLI"
    return {f", layers 0-{count - 1}": one.changes(0, count - 1)} if count and is_mnli else {}


def _lower_minus_upper(one: Ablation) -> Dict[str, Sequence[float]]:
    half = one.num_layers // 2
    if not half:
        return {}
    lower, upper = one.spans[0, half - 1], one.spans[one.num_layers - half, one.num_layers - 1]
    return {"": [low - high for low, high in zip(lower, upper)]}


def _none_minus_majority(one: Ablation) -> Dict[str, Sequence[float]]:
    return {"": [score - (one.majority or 0) for score in one.none]}


def _scales(runs: _Runs) -> Iterator[Tuple[str, Dict[float, Cell]]]:
    """Yields (task, scale → cell) of tasks with the usual scale, one below and one above."""
    cells = paper_cells.curve(runs.figure_6, ADAPTERS, INIT_SCALE)
    for task, of_task in selection.group_by(cells, lambda cell: cell.task).items():
        by_scale = {cell.level: cell for cell in of_task}
        if _USUAL_SCALE in by_scale and min(by_scale) < _USUAL_SCALE < max(by_scale):
            yield published.title(task), by_scale


def _small_scales(runs: _Runs) -> Iterator[Value]:
    """Measures the accuracy at each initial scale below the usual one, minus that at the usual."""
    for task, by_scale in _scales(runs):
        for scale in sorted(scale for scale in by_scale if scale < _USUAL_SCALE):
            yield _difference(by_scale[scale], by_scale[_USUAL_SCALE], f"{task}, {scale:g}")


def _large_scales(runs: _Runs) -> Iterator[Value]:
    """Measures the accuracy at the largest initial scale, minus that at the usual."""
    for task, by_scale in _scales(runs):
        yield _difference(by_scale[max(by_scale)], by_scale[_USUAL_SCALE], task)


def _large_scales_of_cola(runs: _Runs) -> Iterator[Value]:
    """Measures the change by large scales on CoLA, minus that on MNLI."""
    values = list(_large_scales(runs))
    for cola in (value for value in values if value.label == "CoLA"):
        for other in (value for value in values if value is not cola):
            (both,) = _mean([cola, other], minimum=2)
            yield both._replace(label=f"CoLA, {other.label}", ours=cola.ours.minus(other.ours))


def _paper_1(label: str) -> Dict[str, Estimate]:
    """Returns the paper's differences of adapters from full fine-tuning, from Table 1."""
    full, *others = published.TABLE_1
    (row,) = (row for row in others if row.label == label)
    return {task: Estimate(row.scores[task] - score) for task, score in full.scores.items()}


def _paper_2(column: str) -> Dict[str, Estimate]:
    """Returns the paper's differences of a column from full fine-tuning, from Table 2."""

    def score(pair: Tuple[float, Optional[float]]) -> Estimate:
        return Estimate(pair[0], pair[1] or 0.0)

    return {
        task: score(getattr(row, column)).minus(score(row.full))
        for task, row in published.TABLE_2.items()
    }


_SAME = Condition("the paper's value, with a tolerance of 1", 0, 0, tolerance=1)
_BELOW_0, _ABOVE_0 = Condition("below 0", high=0), Condition("above 0", low=0)
_SIMILAR = Condition("each within ±1", -1, 1)

_FULL = " minus full fine-tuning"
_FULL_GLUE, _FULL_FURTHER = _Side("glue", FULL), _Side("further", FULL)
CLAIMS = (
    # Table 1, section 3.2.
    Claim(
        f"GLUE: adapters, best size per task,{_FULL}",
        "−0.4, 3.6% trained",
        _mean_of(_Side("glue", ADAPTERS, SIZES), _FULL_GLUE, _paper_1(published.BEST_SIZE)),
        _SAME,
        max_share=0.036,
    ),
    Claim(
        f"GLUE: adapters of size 64,{_FULL}",
        "−0.8",
        _mean_of(_Side("glue", ADAPTERS, (64,)), _FULL_GLUE, _paper_1("adapters 64")),
        _SAME,
    ),
    # Table 2, section 3.3.
    Claim(
        f"Further tasks: adapters,{_FULL}, test accuracy",
        "−0.4 (17 tasks)",
        _mean_of(_Side("further", ADAPTERS), _FULL_FURTHER, _paper_2("adapters")),
        _SAME,
    ),
    Claim(
        f"Further tasks: top layers, best number per task,{_FULL}, test accuracy",
        "+0.3 (17 tasks)",
        _mean_of(_Side("further", VARIABLE), _FULL_FURTHER, _paper_2("variable")),
        _SAME,
    ),
    Claim(
        f"Further tasks: no-BERT baseline,{_FULL}, test accuracy",
        "−1.0 (17 tasks)",
        _mean_of(_Side("further", NO_BERT), _FULL_FURTHER, _paper_2("no_bert")),
        _SAME,
    ),
    # Section 3.4.
    Claim(
        "GLUE: top layer alone, minus adapters of size 64, accuracy",
        "−5.9 (MNLI-m); on GLUE, it decreases dramatically",
        _by_task(
            _Side("glue_accuracy", TOP_LAYERS, layers=1), _Side("glue_accuracy", ADAPTERS, (64,))
        ),
        _BELOW_0._replace(text="below 0 on each task"),
    ),
    Claim(
        f"GLUE: LayerNorms alone,{_FULL}, accuracy",
        "about −3.5 (CoLA), −4 (MNLI); it does not say from what",
        _by_task(
            _Side("glue_accuracy", LAYER_NORM),
            _Side("glue_accuracy", FULL),
            {"CoLA": Estimate(-3.5), "MNLI-m": Estimate(-4.0)},
        ),
        _SAME,
    ),
    Claim(
        f"GLUE: adapters that train 0.5 to 5%,{_FULL}",
        "within 1 of published results of BERT-Large",
        _moderate_sizes,
        Condition("each size at least −1, with a tolerance of 1", low=-1, tolerance=1),
    ),
    # Section 3.5.
    Claim(
        f"SQuAD: F1 of adapters of size 64,{_FULL}",
        "−0.3",
        _by_task(_Side("squad", ADAPTERS, (64,)), _Side("squad", FULL), {"SQuAD": Estimate(-0.3)}),
        _SAME,
    ),
    Claim(
        f"SQuAD: F1 of adapters of size 2,{_FULL}",
        "−0.8",
        _by_task(_Side("squad", ADAPTERS, (2,)), _Side("squad", FULL), {"SQuAD": Estimate(-0.8)}),
        _SAME,
    ),
    # Section 3.6.
    Claim(
        "Removing one layer's adapters: change in accuracy",
        "at worst −2% (MNLI, CoLA)",
        _of_ablations(_single_layers),
        Condition("each layer at least −2, with a tolerance of 1", low=-2, tolerance=1),
    ),
    Claim(
        "Removing the adapters of the lowest 5 of 12 layers: change in accuracy",
        "barely affects (layers 0-4, MNLI)",
        _of_ablations(_lowest_layers),
        Condition("at least −1, with a tolerance of 1", low=-1, tolerance=1),
    ),
    Claim(
        "Removing the lower half's adapters, minus removing the upper half's, accuracy",
        "lower layers have a smaller impact (MNLI, CoLA)",
        _of_ablations(_lower_minus_upper),
        _ABOVE_0,
    ),
    Claim(
        "Removing all adapters: accuracy, minus the majority class's",
        "0 (MNLI, CoLA)",
        _of_ablations(_none_minus_majority),
        _SIMILAR,
    ),
    Claim(
        "Initial standard deviations below 1e-2, minus 1e-2, accuracy",
        "robust (MNLI, CoLA)",
        _small_scales,
        _SIMILAR,
    ),
    Claim(
        "The largest initial standard deviation, minus 1e-2, accuracy",
        "degrades (MNLI, CoLA)",
        _large_scales,
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
        _sizes,
        Condition("each within ±0.5, with a tolerance of 0.5", -0.5, 0.5, tolerance=0.5),
    ),
    Claim(
        "GLUE: the paper's variants of the adapter, minus the default, accuracy",
        "similar",
        functools.partial(_variants, are_named=True),
        _SIMILAR,
    ),
    # Ours: the paper does not name these variants, and a converted encoder's pooler is untrained.
    Claim(
        "GLUE: other variants of the adapter, minus the default, accuracy",
        "",
        functools.partial(_variants, are_named=False),
    ),
    *(
        Claim(
            f"GLUE: adapters{text}, pooler trained,{_FULL}",
            "",
            _mean_of(_Side("glue", ADAPTERS, sizes, pooler=True), _FULL_GLUE),
        )
        for text, sizes in ((", best size per task", SIZES), (" of size 64", (64,)))
    ),
)


def _range(counts: Sequence[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _titles(tasks: Iterable[str]) -> str:
    names = [published.title(task) for task in sorted(tasks, key=published.sort_key)]
    return ", ".join(names) if len(names) <= _MAX_TEXTS else f"{len(names)} tasks"


def _texts(values: Dict[str, Estimate]) -> str:
    """Returns the values as a text; of many, the lowest and the highest."""
    ranked = sorted(values.items(), key=lambda item: item[1].value)
    if len(values) > _MAX_TEXTS:
        ends = " to ".join(f"{value} ({label})" for label, value in (ranked[0], ranked[-1]))
        return f"{ends}, {len(values)} in all"
    return ", ".join(f"{value} ({published.title(label)})" for label, value in values.items())
