"""Compares the paper's claims with the records of a sweep.

`CLAIMS` is a table: each row has the paper's value, a function that measures it in the records, and
the condition of the verdict "agrees". Scores are means over seeds at each method's best setting on
the dev set. A difference between two methods is compared with the paper's difference on the same
tasks: a verdict is on the paper's number, so that a better result differs, too.

A verdict needs two learning rates for each method, size and task, and two seeds of the chosen
setting; a mean over GLUE or the further tasks needs three such tasks. Only tasks that have these
count; without enough of them, the claim is open. Two seeds with equal scores have no usable error.
An ablation compares a model with itself and needs two seeds only.
"""

import dataclasses
import functools
from typing import Callable, Dict, Iterable, List, NamedTuple, Optional, Sequence, Tuple

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
    NO_BERT,
    TEST,
    TOP_LAYERS,
    VALIDATION,
    Method,
    Record,
)

_MIN_TASKS = 3  # A mean over tasks needs these.
SIZES = (8, 64, 256)  # Section 3.2.
_USUAL_SCALE = 1e-2  # Section 3.6.
# The variants that section 3.6 names, as `cells.variants` labels them.
_NAMED_KINDS = ("normalization ", "depth ", "activation ")
_NAMED = ("sites attention", "placement parallel", "interaction multiply, placement parallel")
_MAX_TEXTS = 4  # More values or tasks would fill a table's cell.


class Measured(NamedTuple):
    """Holds what records say of a claim.

    Attributes:
      values: the estimates that must meet the condition, by task, size or design.
      paper: the paper's values of the same; empty if it has none.
      tried: numbers of settings tried, for each method and task.
      seeds: numbers of seeds of the chosen settings.
      gaps: what the records lack for a verdict.
      share: the mean share of BERT's parameters that the first method trains, if known.
    """

    values: Dict[str, Estimate]
    paper: Dict[str, Estimate] = {}
    tried: Sequence[int] = ()
    seeds: Sequence[int] = ()
    gaps: Sequence[str] = ()
    share: Optional[float] = None


class Claim(NamedTuple):
    """A claim: what is measured, the paper's own number, the measurement, and how it is judged.

    A claim without a condition is a comparison of ours, not the paper's, and has no verdict.
    """

    title: str
    headline: str
    measure: Callable[[List[Record], List[Ablation]], Optional[Measured]]
    condition: Optional[Condition] = None
    max_share: Optional[float] = None


def rows(records: List[Record], ablations: List[Ablation]) -> List[Dict[str, str]]:
    """Returns the rows of all claims with records, as texts.

    A row has the claim, the paper's own number, its value on the tasks that were run ("" if it has
    none), our value, the condition of "agrees", the numbers of settings tried and of seeds of the
    chosen settings, and the verdict: "agrees", "differs", "unclear", or "open: " and what is
    missing. Condition and verdict of a comparison of ours are "".
    """
    measured = ((claim, claim.measure(records, ablations)) for claim in CLAIMS)
    return [_row(claim, found) for claim, found in measured if found and found.values]


def _row(claim: Claim, found: Measured) -> Dict[str, str]:
    agrees_if = verdict = ""
    ours = _texts(found.values)
    if claim.condition:
        agrees_if, values = claim.condition.text, found.values
        if claim.condition is _SAME:
            values = {label: one.minus(found.paper[label]) for label, one in values.items()}
        verdict = claim.condition.verdict(values.values())
        if verdict == "differs" and claim.condition is _SAME:
            is_higher = sum(value.value for value in values.values()) > 0
            verdict += ", higher" if is_higher else ", lower"
        if found.gaps:
            verdict = f"open: {', '.join(found.gaps)}"
    if claim.max_share and found.share is not None:
        agrees_if += f"; at most {claim.max_share:.1%} trained"
        ours += f", {found.share:.2%} trained"
        if found.share > claim.max_share and not found.gaps:
            verdict = "differs, more trained"
    return {
        "claim": claim.title,
        "paper": claim.headline,
        "paper, same tasks": _texts(found.paper),
        "ours": ours,
        "agrees if": agrees_if,
        "settings tried": f"{_range(found.tried)} per method and task",
        "seeds": _range(found.seeds),
        "verdict": verdict,
    }


class _Side(NamedTuple):
    """Selects one side of a comparison: a method's cells, one for each task of a suite."""

    suite: Callable[[List[Record]], List[Record]]
    method: Method
    sizes: Tuple[int, ...] = ()
    layers: Optional[int] = None
    pooler: bool = False

    def cells(self, records: List[Record]) -> Dict[str, Cell]:
        """Returns task → its cell."""
        chosen = paper_cells.of_method(self.suite(records), self.method, self.sizes, self.pooler)
        if self.layers:
            chosen = [r for r in chosen if TOP_LAYERS.level_of(r) == self.layers]
        split = TEST if self.suite is _further else VALIDATION
        return {cell.task: cell for cell in paper_cells.cells_of(self.method.label, chosen, split)}


@dataclasses.dataclass(frozen=True)
class _Difference:
    """Measures the difference of two sides, as a mean over tasks or for each task.

    Attributes:
      paper: the paper's difference, by task; None if it has none. Other tasks do not count.
      is_mean: whether the value is the mean over tasks.
    """

    first: _Side
    second: _Side
    paper: Optional[Dict[str, Estimate]] = None
    is_mean: bool = False

    def __call__(self, records: List[Record], ablations: List[Ablation]) -> Optional[Measured]:
        first, second = self.first.cells(records), self.second.cells(records)
        pairs = {
            task: (cell, second[task])
            for task, cell in first.items()
            if task in second and task in (self.paper or first)
        }
        return _differences(pairs, self.paper, _MIN_TASKS if self.is_mean else 0)


def _differences(
    pairs: Dict[str, Tuple[Cell, Cell]],
    paper: Optional[Dict[str, Estimate]] = None,
    mean_over: int = 0,
) -> Optional[Measured]:
    """Returns the differences of pairs of cells by task or another label, or their mean.

    Only pairs without gaps count, if they are enough: one, or `mean_over` for a mean.
    """
    pairs, gaps = _without_gaps(pairs, mean_over or 1)
    if not pairs:
        return None
    values = {
        label: Estimate(0.0)  # The same runs.
        if one.choice == other.choice
        else _score(one).minus(_score(other))
        for label, (one, other) in pairs.items()
    }
    same = {label: paper[label] for label in values if paper and label in paper}
    if mean_over:
        values, same = (
            {_titles(values): estimates.mean(v.values())} if v else {} for v in (values, same)
        )
    cells = [cell for pair in pairs.values() for cell in pair]
    shares = [one.choice.share for one, _ in pairs.values()]
    return Measured(
        values,
        same,
        [_settings_tried(cell.records) for cell in cells],
        [cell.choice.seeds for cell in cells],
        gaps,
        None if None in shares else sum(shares) / len(shares),  # type: ignore[arg-type]
    )


def _join(parts: Dict[str, Optional[Measured]]) -> Optional[Measured]:
    """Returns measurements of one value each as one, of those without gaps if there are any."""
    found = {name: one for name, one in parts.items() if one}
    found = {name: one for name, one in found.items() if not one.gaps} or found
    return Measured(
        {f"{name}: {label}": v for name, one in found.items() for label, v in one.values.items()},
        tried=[count for one in found.values() for count in one.tried],
        seeds=[count for one in found.values() for count in one.seeds],
        gaps=list(dict.fromkeys(gap for one in found.values() for gap in one.gaps)),
    )


def _score(cell: Cell) -> Estimate:
    return estimates.over_seeds(cell.choice.values)


_Pairs = Dict[str, Tuple[Cell, Cell]]


def _without_gaps(pairs: _Pairs, minimum: int) -> Tuple[_Pairs, List[str]]:
    """Returns the pairs of cells that have no gaps, and []; if too few, all and their gaps."""
    gaps = {label: _gaps(pair) for label, pair in pairs.items()}
    complete = {label: pair for label, pair in pairs.items() if not gaps[label]}
    if len(complete) >= minimum:
        return complete, []
    texts = []
    for text in sorted({text for missing in gaps.values() for text in missing}):
        labels = [label for label in pairs if text in gaps[label]]
        texts.append(text if len(labels) == len(pairs) else f"{text} ({_titles(labels)})")
    if len(pairs) < minimum:
        texts.append(paper_cells.pluralize(len(pairs), "task"))
    return pairs, texts


def _gaps(cells: Iterable[Cell]) -> List[str]:
    """Returns what cells lack for a verdict.

    The baseline without BERT has its own search. Each size and number of layers needs two rates.
    """
    found = set()
    for cell in cells:
        found.add(_score(cell).gap)
        levels = {ADAPTERS.label: ADAPTERS.level_of, TOP_LAYERS.label: TOP_LAYERS.level_of}
        level_of = levels.get(cell.method, lambda record: None)
        for records in selection.group_by(cell.records, level_of).values():
            rates = {selection.schedule_of(record).get("learning_rate") for record in records}
            if len(rates) < 2 and cell.method != NO_BERT.label:
                found.add("one learning rate")
    return sorted(found - {""})


def _settings_tried(records: List[Record]) -> int:
    """Returns the number of settings that the records, or the searches behind them, tried."""
    by_setting = selection.group_by(records, selection.setting_key)
    return sum(max(r["flags"].get("trials", 1) for r in group) for group in by_setting.values())


def _glue(records: List[Record]) -> List[Record]:
    return [r for r in paper_cells.glue(records) if r["task"] in published.GLUE]


def _glue_accuracy(records: List[Record]) -> List[Record]:
    """Returns the records of GLUE's classification tasks, with accuracy as their score."""
    accurate = paper_cells.by_accuracy(_glue(records))
    return [record for record in accurate if record["score"] == "eval_accuracy"]


def _mnli_and_cola(records: List[Record]) -> List[Record]:
    """Returns the records of figure 6's tasks, by accuracy; a sample of MNLI counts as MNLI."""
    return paper_cells.by_accuracy([r for r in records if _is_of_figure_6(r["task"])])


def _is_of_figure_6(task: str) -> bool:
    return published.split_sample(task)[0] in ("MNLI", "CoLA")


def _squad(records: List[Record]) -> List[Record]:
    return [r for r in records if r["script"] == "run_squad.py" and r["task"] == "SQuAD"]


def _further(records: List[Record]) -> List[Record]:
    return [r for r in paper_cells.further(records) if r["task"] in published.TABLE_2]


def _by_size(records: List[Record], first: _Side, second: _Side) -> Dict[str, Optional[Measured]]:
    """Returns the mean difference of each size of adapters of a side from another side."""
    adapters = paper_cells.of_method(first.suite(records), ADAPTERS)
    return {
        f"size {size}": _Difference(first._replace(sizes=(size,)), second, is_mean=True)(
            records, []
        )
        for size in sorted(set(map(ADAPTERS.level_of, adapters)))
    }


def _sizes(records: List[Record], ablations: List[Ablation]) -> Optional[Measured]:
    """Measures section 3.6's mean accuracies of sizes 8 and 256, minus that of size 64."""
    adapters = _Side(_glue_accuracy, ADAPTERS)
    parts = _by_size(records, adapters, adapters._replace(sizes=(64,)))
    return _join({name: parts.get(name) for name in ("size 8", "size 256")})


def _moderate_sizes(records: List[Record], ablations: List[Ablation]) -> Optional[Measured]:
    """Measures each size that trains 0.5 to 5% of BERT, minus full fine-tuning, on GLUE."""
    parts = _by_size(records, _Side(_glue, ADAPTERS), _FULL_GLUE)
    return _join(
        {name: one for name, one in parts.items() if one and 0.005 <= (one.share or 0) <= 0.05}
    )


def _variants(
    records: List[Record], ablations: List[Ablation], *, are_named: bool
) -> Optional[Measured]:
    """Measures the variants that section 3.6 names, or the others, minus the default adapter."""
    by_variant: Dict[str, _Pairs] = {}
    for cell, default in paper_cells.variants(_glue_accuracy(records)):
        is_named = cell.method in _NAMED or cell.method.startswith(_NAMED_KINDS)
        if default and cell.method != paper_cells.DEFAULT and is_named == are_named:
            name = f"{cell.method}, size {cell.level}"
            by_variant.setdefault(name, {})[cell.task] = cell, default
    parts = {}
    for name, pairs in by_variant.items():
        complete, _ = _without_gaps(pairs, 1)
        parts[name] = _differences(complete, mean_over=len(complete))
    return _join(parts)


def _of_ablations(
    values_of: Callable[[Ablation], Dict[str, Sequence[float]]],
) -> Callable[[List[Record], List[Ablation]], Measured]:
    """Returns a measurement of figure 6's ablations, from their values, one for each model."""

    def measure(records: List[Record], ablations: List[Ablation]) -> Measured:
        ablations = [
            one
            for one in ablations
            if one.score == "accuracy" and one.majority is not None and _is_of_figure_6(one.task)
        ]
        ablations = [one for one in ablations if len(one.full) > 1] or ablations
        values = {
            published.title(one.task) + label: estimates.over_seeds(scores)
            for one in ablations
            for label, scores in values_of(one).items()
        }
        gaps = sorted({value.gap for value in values.values()} - {""})
        seeds = [len(one.full) for one in ablations]
        return Measured(values, tried=[1] * len(seeds), seeds=seeds, gaps=gaps)

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


def _scales(records: List[Record]) -> Dict[str, Dict[float, Cell]]:
    """Returns task → scale → cell, of tasks with the usual scale, one below and one above."""
    cells = paper_cells.curve(_mnli_and_cola(records), ADAPTERS, INIT_SCALE)
    by_task: Dict[str, Dict[float, Cell]] = {}
    for cell in cells:
        by_task.setdefault(published.title(cell.task), {})[cell.level] = cell
    return {
        task: by_scale
        for task, by_scale in by_task.items()
        if _USUAL_SCALE in by_scale and min(by_scale) < _USUAL_SCALE < max(by_scale)
    }


def _small_scales(records: List[Record], ablations: List[Ablation]) -> Optional[Measured]:
    """Measures the accuracy at each initial scale below the usual one, minus that at the usual."""
    pairs = {
        f"{task}, {scale:g}": (cell, by_scale[_USUAL_SCALE])
        for task, by_scale in _scales(records).items()
        for scale, cell in by_scale.items()
        if scale < _USUAL_SCALE
    }
    return _differences(pairs)


def _large_scales(records: List[Record], ablations: List[Ablation]) -> Optional[Measured]:
    """Measures the accuracy at the largest initial scale, minus that at the usual."""
    pairs = {
        task: (by_scale[max(by_scale)], by_scale[_USUAL_SCALE])
        for task, by_scale in _scales(records).items()
    }
    return _differences(pairs)


def _large_scales_of_cola(records: List[Record], ablations: List[Ablation]) -> Optional[Measured]:
    """Measures the change by large scales on CoLA, minus that on MNLI."""
    found = _large_scales(records, ablations)
    if not found or "CoLA" not in found.values:
        return None
    cola, *others = sorted(found.values, key=lambda title: title != "CoLA")
    values = {f"CoLA, {title}": found.values[cola].minus(found.values[title]) for title in others}
    return found._replace(values=values)


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
_FULL_GLUE, _FULL_FURTHER = _Side(_glue, FULL), _Side(_further, FULL)
CLAIMS = (
    # Table 1, section 3.2.
    Claim(
        f"GLUE: adapters, best size per task,{_FULL}",
        "−0.4, 3.6% trained",
        _Difference(_Side(_glue, ADAPTERS, SIZES), _FULL_GLUE, _paper_1(published.BEST_SIZE), True),
        _SAME,
        max_share=0.036,
    ),
    Claim(
        f"GLUE: adapters of size 64,{_FULL}",
        "−0.8",
        _Difference(_Side(_glue, ADAPTERS, (64,)), _FULL_GLUE, _paper_1("adapters 64"), True),
        _SAME,
    ),
    # Table 2, section 3.3.
    Claim(
        f"Further tasks: adapters,{_FULL}, test accuracy",
        "−0.4 (17 tasks)",
        _Difference(_Side(_further, ADAPTERS), _FULL_FURTHER, _paper_2("adapters"), True),
        _SAME,
    ),
    Claim(
        f"Further tasks: top layers, best number per task,{_FULL}, test accuracy",
        "+0.3 (17 tasks)",
        _Difference(_Side(_further, VARIABLE), _FULL_FURTHER, _paper_2("variable"), True),
        _SAME,
    ),
    Claim(
        f"Further tasks: no-BERT baseline,{_FULL}, test accuracy",
        "−1.0 (17 tasks)",
        _Difference(_Side(_further, NO_BERT), _FULL_FURTHER, _paper_2("no_bert"), True),
        _SAME,
    ),
    # Section 3.4.
    Claim(
        "GLUE: top layer alone, minus adapters of size 64, accuracy",
        "−5.9 (MNLI-m); on GLUE, it decreases dramatically",
        _Difference(
            _Side(_glue_accuracy, TOP_LAYERS, layers=1), _Side(_glue_accuracy, ADAPTERS, (64,))
        ),
        _BELOW_0._replace(text="below 0 on each task"),
    ),
    Claim(
        f"GLUE: LayerNorms alone,{_FULL}, accuracy",
        "about −3.5 (CoLA), −4 (MNLI); it does not say from what",
        _Difference(
            _Side(_glue_accuracy, LAYER_NORM),
            _Side(_glue_accuracy, FULL),
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
        _Difference(_Side(_squad, ADAPTERS, (64,)), _Side(_squad, FULL), {"SQuAD": Estimate(-0.3)}),
        _SAME,
    ),
    Claim(
        f"SQuAD: F1 of adapters of size 2,{_FULL}",
        "−0.8",
        _Difference(_Side(_squad, ADAPTERS, (2,)), _Side(_squad, FULL), {"SQuAD": Estimate(-0.8)}),
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
            _Difference(_Side(_glue, ADAPTERS, sizes, pooler=True), _FULL_GLUE, is_mean=True),
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
