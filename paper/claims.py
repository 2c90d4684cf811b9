"""Compares the paper's claims with the records of a sweep.

A difference between two methods is a mean over tasks, at each method's selected settings, among the
numbers of epochs that both were trained with. Its standard error combines those over seeds. A
verdict needs two learning rates and two numbers of epochs at equal other settings, and two seeds,
for each method and size, and three tasks for a mean over tasks. Two seeds with equal scores have no
usable error and are not enough. Only the tasks, scales and designs that have these count; without
enough of them, the claim is open. An ablation compares a model with itself and needs two seeds
only. A claim is unclear if its verdict differs within the 95% confidence interval; see `estimates`.
"""

import collections
import itertools
import operator
from typing import Callable, Collection, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple

from adapter_bert.paper import estimates, published, report_tables
from adapter_bert.paper.ablation_results import Ablation
from adapter_bert.paper.estimates import Estimate
from adapter_bert.sweeps import selection
from adapter_bert.sweeps.selection import (
    ADAPTERS,
    FULL,
    LAYER_NORM,
    NO_BERT,
    TEST,
    TOP_LAYERS,
    VALIDATION,
    Record,
)

_RATE, _EPOCHS, _INIT_SCALE = "learning_rate", "num_train_epochs", selection.INIT_SCALE
_MIN_TASKS = 3  # A verdict on a mean over tasks needs these.
_MAX_SHARE = 0.036  # Table 1: the share of parameters that adapters train, size chosen per task.
_SIZES = (8, 64, 256)  # Section 3.2.


class ClaimRow(NamedTuple):
    """A claim, the paper's value and the records' value, as texts.

    Attributes:
      claim: what is measured.
      paper: the paper's value.
      ours: the records' value.
      agrees_if: the condition of the verdict "agrees".
      settings: numbers of settings tried.
      seeds: numbers of seeds of the chosen settings.
      verdict: "agrees", "differs", "unclear" or "open: " and what is missing.
    """

    claim: str
    paper: str
    ours: str
    agrees_if: str
    settings: str
    seeds: str
    verdict: str


class Side(NamedTuple):
    """Holds one side of a comparison: a method's records and selected settings, by task.

    Attributes:
      label: its name.
      records: by task.
      chosen: the selected setting of each task.
    """

    label: str
    records: Dict[str, List[Record]]
    chosen: Dict[str, selection.Selected]

    def estimate(self, task: str) -> Estimate:
        """Returns a task's score."""
        return estimates.over_seeds(self.chosen[task].values)

    def at_tasks(self, is_kept: Callable[[str], bool]) -> "Side":
        """Returns a side with the tasks for which `is_kept` is true."""
        return Side(
            self.label,
            {task: records for task, records in self.records.items() if is_kept(task)},
            {task: choice for task, choice in self.chosen.items() if is_kept(task)},
        )

    def complete(self) -> "Side":
        """Returns a side with the tasks whose runs have no `gaps`."""
        return self.at_tasks(lambda task: not gaps([self], [task]))


_value = operator.attrgetter("value")


def side(label: str, records: List[Record], split: str = VALIDATION) -> Side:
    """Returns the side of a method's records."""
    by_task = selection.group_by(records, lambda record: record["task"])
    chosen = {task: selection.choose_mean(group, split) for task, group in by_task.items()}
    chosen = {task: choice for task, choice in chosen.items() if choice}
    return Side(label, {task: by_task[task] for task in chosen}, chosen)


def sides_of(by_label: Dict[str, List[Record]]) -> List[Side]:
    """Returns the sides of methods, from label to records, at equal numbers of epochs."""
    return [side(*item) for item in selection.at_equal_epochs(by_label).items()]


def difference(
    first: Side, second: Side, min_tasks: int = 1
) -> Tuple[Dict[str, Estimate], Optional[float]]:
    """Returns the difference of two sides' scores over `carried` tasks.

    Returns:
      by_task: in points; {} without a common task.
      share: mean share of BERT's parameters that the first side trains; None if unknown.
    """
    tasks = carried([first, second], first.chosen.keys() & second.chosen.keys(), min_tasks)
    by_task = {
        task: estimates.NOTHING  # The same runs.
        if first.chosen[task] == second.chosen[task]
        else first.estimate(task).minus(second.estimate(task))
        for task in tasks
    }
    return by_task, report_tables.mean_share([first.chosen[task] for task in tasks])


def gaps(sides: List[Side], tasks: Collection[str], min_tasks: int = 1) -> List[str]:
    """Returns what a sweep lacks for a verdict.

    Args:
      sides: these may lack tasks; the baseline without BERT has its own search and
        is not checked.
      tasks: the tasks that count.
      min_tasks: minimum number of tasks.
    """
    tuned = [one for one in sides if one.label != NO_BERT.label]
    groups = [
        group for one in tuned for task in tasks for group in _by_level(one.records.get(task, []))
    ]
    missing = [
        text
        for flag, text in ((_RATE, "one learning rate"), (_EPOCHS, "one number of epochs"))
        if not all(_is_swept(group, flag) for group in groups)
    ]
    missing += _error_gaps(one.estimate(t) for one in sides for t in tasks if t in one.chosen)
    if len(tasks) < min_tasks:
        missing.append("one task" if len(tasks) == 1 else f"{len(tasks)} tasks")
    return missing


def _error_gaps(scores: Iterable[Estimate]) -> List[str]:
    return sorted({score.gap for score in scores} - {""})


def _by_level(records: List[Record]) -> Iterable[List[Record]]:
    """Returns the records grouped by size of adapters and number of top layers."""
    levels = selection.group_by(
        records, lambda r: (str(ADAPTERS.level_of(r)), str(TOP_LAYERS.level_of(r)))
    )
    return levels.values()


def _is_swept(records: List[Record], flag: str) -> bool:
    """Returns whether `flag` has two values among records whose other settings are equal."""
    groups = selection.group_by(records, lambda r: selection.settings_without(r, {flag}))
    return any(
        len({selection.schedule_of(r)[flag] for r in group}) > 1 for group in groups.values()
    )


def carried(sides: List[Side], tasks: Collection[str], min_tasks: int = 1) -> List[str]:
    """Returns the tasks with complete sweeps if they are enough, or else all, in order."""
    complete = [task for task in tasks if not gaps(sides, [task])]
    return sorted(complete if len(complete) >= min_tasks else tasks, key=published.sort_key)


def rows(records: List[Record], ablations: List[Ablation]) -> List[ClaimRow]:
    """Returns the rows of all claims with records."""
    glue = list(filter(_is_glue, records))
    candidates = [
        *_glue_rows(glue),
        *_parameter_rows(glue),
        *_squad_rows(records),
        *_further_rows(records),
        *_ablation_rows(ablations),
        *_init_scale_rows(records),
        _learning_rate_row(records),
        *_variant_rows(glue),
    ]
    return [row for row in candidates if row]


def _is_glue(record: Record) -> bool:
    return record["script"] == "run_classifier.py" and published.is_glue(record["task"])


def _by_accuracy(records: List[Record]) -> List[Record]:
    """Returns the records that have an accuracy, with accuracy as their score."""
    return [
        {**record, "score": "eval_accuracy"}
        for record in records
        if "eval_accuracy" in record["scores"]
    ]


def _glue_rows(glue: List[Record]) -> Iterator[Optional[ClaimRow]]:
    full = selection.filter_by_method(glue, FULL)
    for pooler, note in ((False, ""), (True, ", pooler trained")):
        for sizes, claim, expected, max_share in (
            (_SIZES, f"GLUE: adapters, best size per task{note}", -0.4, _MAX_SHARE),
            ([64], f"GLUE: adapters of size 64{note}", -0.8, None),
        ):
            records = selection.select_adapters(glue, pooler, sizes)
            adapters, reference = sides_of({ADAPTERS.label: records, FULL.label: full})
            yield _difference_row(
                f"{claim}, minus full fine-tuning",
                f"{estimates.signed(expected)}"
                + (f", {max_share:.1%} trained" if max_share else ""),
                adapters,
                reference,
                at_least=expected,
                max_share=max_share,
                note=_lone_sizes_note(adapters.at_tasks(reference.chosen.__contains__))
                if len(sizes) > 1
                else "",
                min_tasks=_MIN_TASKS,
            )
    yield _sizes_row(glue)


def _lone_sizes_note(adapters: Side) -> str:
    """Returns a text on the tasks with a single size, "" without such tasks."""
    tasks = collections.defaultdict(list)
    for task, records in adapters.records.items():
        tasks[tuple({ADAPTERS.level_of(record) for record in records})].append(task)
    notes = [
        f"; only size {sizes[0]} on {_titles(tasks[sizes])}" for sizes in tasks if len(sizes) == 1
    ]
    return "".join(sorted(notes))


def _sizes_row(glue: List[Record]) -> Optional[ClaimRow]:
    """Returns the row of mean accuracies of sizes 8, 64 and 256, over tasks that have all three."""
    sides = sides_of(
        {str(size): _by_accuracy(selection.select_adapters(glue, sizes=[size])) for size in _SIZES}
    )
    shared = set.intersection(*(set(one.chosen) for one in sides))
    tasks = carried(sides, shared, _MIN_TASKS)
    if not tasks:
        return None
    means = [estimates.mean([one.estimate(task) for task in tasks]) for one in sides]
    spreads = [one.minus(other) for one, other in itertools.permutations(means, 2)]
    texts = [
        f"{size}: {report_tables.format_score(one.value, one.sem)}"
        for size, one in zip(_SIZES, means)
    ]
    return _row(
        "GLUE: mean accuracy of adapters by size",
        "size 8: 86.2, 64: 85.8, 256: 85.7",
        f"size {', '.join(texts)} ({_titles(tasks)})",
        sides,
        tasks,
        "all sizes within 0.5",
        estimates.at_most(spreads, 0.5),
        _MIN_TASKS,
    )


def _parameter_rows(glue: List[Record]) -> Iterator[Optional[ClaimRow]]:
    top = [r for r in selection.filter_by_method(glue, TOP_LAYERS) if TOP_LAYERS.level_of(r) == 1]
    adapters = selection.select_adapters(glue, sizes=[64])
    yield _difference_row(
        "Top layer alone, minus adapters of size 64, accuracy",
        "−5.9 (MNLI)",
        *sides_of({"top layer": _by_accuracy(top), ADAPTERS.label: _by_accuracy(adapters)}),
        by_task=True,
        min_tasks=2,
    )
    norms = selection.filter_by_method(glue, LAYER_NORM)
    full = selection.filter_by_method(glue, FULL)
    yield _difference_row(
        "LayerNorms alone, minus full fine-tuning, accuracy",
        "−3.5 (CoLA), −4 (MNLI)",
        *sides_of({LAYER_NORM.label: _by_accuracy(norms), FULL.label: _by_accuracy(full)}),
        by_task=True,
        min_tasks=2,
    )


def _squad_rows(records: List[Record]) -> Iterator[Optional[ClaimRow]]:
    squad = [r for r in records if r["script"] == "run_squad.py" and r["task"] == "SQuAD"]
    full = selection.filter_by_method(squad, FULL)
    for size, expected in ((64, -0.3), (2, -0.8)):
        adapters = selection.select_adapters(squad, sizes=[size])
        yield _difference_row(
            f"SQuAD: F1 of adapters of size {size}, minus full fine-tuning",
            estimates.signed(expected),
            *sides_of({ADAPTERS.label: adapters, FULL.label: full}),
            at_least=expected,
        )


def _further_rows(records: List[Record]) -> Iterator[Optional[ClaimRow]]:
    further = [
        record
        for record in records
        if record["task"] in published.TABLE_2 and selection.points(record, TEST) is not None
    ]
    by_method = {
        method: selection.filter_by_method(further, method)
        for method in (FULL, TOP_LAYERS, NO_BERT)
    }
    by_method[ADAPTERS] = selection.select_adapters(further)
    for method, note, expected, lowest in (
        (ADAPTERS, "", -0.4, -0.4),
        (TOP_LAYERS, ", best number per task", 0.3, 0.3),
        (NO_BERT, "", -1.0, None),
    ):
        first, second = selection.at_equal_epochs(
            {one: by_method[one] for one in (method, FULL)}
        ).values()
        if method is TOP_LAYERS:  # All layers are full fine-tuning.
            varied = {record["task"] for record in first}
            first = first + [record for record in second if record["task"] in varied]
        yield _difference_row(
            f"Further tasks: {method.label}{note}, minus full fine-tuning, test accuracy",
            f"{estimates.signed(expected)} (17 tasks)",
            side(method.label, first, TEST),
            side(FULL.label, second, TEST),
            at_least=lowest,
            min_tasks=_MIN_TASKS,
        )


def _ablation_rows(ablations: List[Ablation]) -> Iterator[ClaimRow]:
    """Yields the rows of ablations, which compare a model with itself, so they need no sweep."""
    ablations = [one for one in ablations if one.score == "accuracy" and one.majority is not None]
    ablations = [one for one in ablations if len(one.full) > 1] or ablations
    if not ablations:
        return
    layers = {
        one.task: [
            estimates.over_seeds(one.changes(layer, layer)) for layer in range(one.num_layers)
        ]
        for one in ablations
    }
    changes_of_layers = sum(layers.values(), [])
    yield _ablation_row(
        "Removing one layer's adapters: change in accuracy, worst layer",
        "−2 (MNLI, CoLA)",
        {task: min(changes, key=_value) for task, changes in layers.items()},
        ablations,
        "every layer at least −2",
        changes_of_layers,
        estimates.at_least(changes_of_layers, -2),
    )
    left = [
        estimates.over_seeds([s - one.majority for s in one.none])  # type: ignore[operator]
        for one in ablations
    ]
    yield _ablation_row(
        "All adapters removed: accuracy, minus majority-class accuracy",
        "0 (MNLI, CoLA)",
        dict(zip(layers, left)),
        ablations,
        "every task within ±1",
        left,
        estimates.joint(estimates.at_most(left, 1), estimates.at_least(left, -1)),
    )


def _ablation_row(
    claim: str,
    expected: str,
    by_task: Dict[str, Estimate],
    ablations: List[Ablation],
    agrees_if: str,
    judged: List[Estimate],
    verdict: str,
) -> ClaimRow:
    counts = [len(ablation.full) for ablation in ablations]
    missing = _error_gaps(judged)
    return ClaimRow(
        *(claim, expected, _by_task(by_task), agrees_if, "1 per task", _range(counts)),
        f"open: {', '.join(missing)}" if missing else verdict,
    )


def _init_scale_sides(records: List[Record]) -> Tuple[List[str], List[Side], List[Side]]:
    """Returns (tasks, sides of scales up to 1e-2, sides above) for `_init_scale_rows`.

    The tasks are those with scores at two scales or more up to 1e-2, and at one or more above.
    """
    adapters = selection.select_by_scale(records)
    by_scale = selection.group_by(adapters, lambda r: selection.flag_of(r, _INIT_SCALE))
    parts = [
        [
            side(f"{scale:g}", group)
            for scale, group in by_scale.items()
            if (scale > 1e-2) == is_high
        ]
        for is_high in (False, True)
    ]
    # Without the incomplete scales, if the others are enough.
    complete = [[one.complete() for one in part] for part in parts]
    for low, high in (complete, parts):
        tasks = [
            task
            for task in {record["task"] for record in adapters}
            if len(_scores(low, task)) > 1 and _scores(high, task)
        ]
        if tasks:
            break
    return tasks, low, high


def _scores(sides: List[Side], task: str) -> List[Estimate]:
    return [one.estimate(task) for one in sides if task in one.chosen]


def _init_scale_rows(records: List[Record]) -> Iterator[ClaimRow]:
    """Yields the rows of small and of large initial weights, which share a verdict."""
    tasks, low, high = _init_scale_sides(records)
    if not tasks:
        return
    sides = [one.at_tasks(tasks.__contains__) for one in (*low, *high)]
    best, worst, worst_high = (
        {task: choose(_scores(part, task), key=_value) for task in tasks}
        for choose, part in ((max, low), (min, low), (min, high))
    )
    # The drop between any two low ones is less than half of the drop to the high ones.
    margins = [
        estimates.combine((1, one), (-0.5, worst_high[task]), (-0.5, other))
        for task in tasks
        for one, other in itertools.permutations(_scores(low, task), 2)
    ]
    verdict = estimates.verdict(lambda end: min(estimates.all_moved(margins, end, 1)) > 0)
    for claim, expected, part in (
        ("up to 1e-2: worst minus best score", "about 0", worst),
        ("above 1e-2: worst score, minus the best up to 1e-2", "below 0", worst_high),
    ):
        yield _row(
            f"Initial standard deviations {claim}",
            f"{expected} (MNLI, CoLA)",
            _by_task({task: part[task].minus(best[task]) for task in tasks}),
            sides,
            tasks,
            "all differences up to 1e-2 less than half of the drop above",
            verdict,
        )


def _learning_rate_row(records: List[Record]) -> Optional[ClaimRow]:
    """Returns the row of how many learning rates are within 2 points of a method's best."""
    records = [record for record in records if 2e-5 <= record["flags"].get(_RATE, 0) <= 1e-3]
    by_method = selection.at_equal_epochs(
        {
            ADAPTERS: selection.select_adapters(records),
            FULL: selection.filter_by_method(records, FULL),
        }
    )
    by_method = {method: _sides_by_rate(group) for method, group in by_method.items()}
    # Only rates that both methods were trained with.
    rates = {
        task: set.intersection(
            *({one.label for one in sides if task in one.chosen} for sides in by_method.values())
        )
        for task in {record["task"] for record in records}
    }
    tasks = [task for task in rates if len(rates[task]) >= 3]
    if not tasks:
        return None
    by_method = {
        method: [one.at_tasks(lambda task, rate=one.label: rate in rates[task]) for one in sides]
        for method, sides in by_method.items()
    }
    sides = [_merge(method.label, by_rate, tasks) for method, by_rate in by_method.items()]
    tasks = carried(sides, tasks)
    margins = {
        (method, task): _behind_the_best(_scores(by_rate, task))
        for method, by_rate in by_method.items()
        for task in tasks
    }

    def count(method: selection.Method, task: str, end: int = 0) -> int:
        return sum(margin.moved(end) >= -2 for margin in margins[method, task])

    ours = "; ".join(
        f"{published.title(task)}: "
        + ", ".join(
            f"{method.label} {count(method, task)} of {len(margins[method, task])}"
            for method in by_method
        )
        for task in tasks
    )
    return _row(
        "Number of learning rates (2e-5 to 1e-3) within 2 points of the best",
        "more for adapters",
        ours,
        sides,
        tasks,
        "more for adapters on each task",
        estimates.verdict(
            lambda end: all(count(ADAPTERS, task, end) > count(FULL, task, -end) for task in tasks)
        ),
    )


def _sides_by_rate(records: List[Record]) -> List[Side]:
    """Returns the side of each learning rate, of comparable records."""
    with_rate = [record for record in records if _RATE in record["flags"]]
    comparable = selection.select_comparable(with_rate, _RATE)
    by_rate = selection.group_by(comparable, lambda record: record["flags"][_RATE])
    return [side(f"{rate:g}", group) for rate, group in by_rate.items()]


def _behind_the_best(scores: List[Estimate]) -> List[Estimate]:
    """Returns how far each score is from the best, at most 0."""
    best = max(scores, key=_value)
    return [estimates.NOTHING if one is best else one.minus(best) for one in scores]


def _merge(label: str, sides: List[Side], tasks: List[str]) -> Side:
    """Returns one side of all records; its choice for a task has the fewest seeds and scores."""
    return Side(
        label,
        {task: [r for one in sides for r in one.records.get(task, ())] for task in tasks},
        {
            task: min(
                (one.chosen[task] for one in sides if task in one.chosen),
                key=lambda choice: (choice.seeds, len(set(choice.values))),
            )
            for task in tasks
        },
    )


def _variant_rows(glue: List[Record]) -> Iterator[ClaimRow]:
    """Yields the row of section 3.6: the worst and the best design, minus the default one."""
    default, pairs = selection.select_adapters(glue), []
    usual = selection.design(selection.without(default[0], _INIT_SCALE)) if default else {}
    groups = selection.group_by(
        selection.filter_by_method(glue, ADAPTERS),
        lambda r: selection.key_of(
            selection.design_difference(selection.without(r, _INIT_SCALE), usual)
        ),
    )
    for key, group in groups.items():
        if key == "{}" or "train_pooler" in key:
            continue
        pair = [
            side(key, selection.match_settings(group, default)),
            side("default", selection.match_settings(default, group)),
        ]
        tasks = carried(pair, pair[0].chosen.keys() & pair[1].chosen.keys())
        if tasks:
            pairs.append([one.at_tasks(tasks.__contains__) for one in pair])
    if not pairs:
        return
    # Without the incomplete designs, if there are others.
    pairs = [pair for pair in pairs if not gaps(pair, pair[0].chosen)] or pairs
    ranked = sorted(
        (
            estimates.mean([one.estimate(task).minus(other.estimate(task)) for task in one.chosen])
            for one, other in pairs
        ),
        key=_value,
    )
    sides = [one for pair in pairs for one in pair]
    tasks = sorted({task for one in sides for task in one.chosen})
    yield _row(
        f"{len(pairs)} variants of the adapter minus the default: worst to best",
        "no boost",
        f"{ranked[0]} to {ranked[-1]} ({_titles(tasks)})",
        sides,
        tasks,
        "every design at most +1",
        estimates.at_most(ranked, 1),
    )


def _difference_row(
    claim: str,
    expected: str,
    first: Side,
    second: Side,
    *,
    at_least: Optional[float] = None,
    max_share: Optional[float] = None,
    by_task: bool = False,
    note: str = "",
    min_tasks: int = 1,
) -> Optional[ClaimRow]:
    """Returns the row of two sides' difference, or None without a common task.

    The mean over tasks, or each task's difference if `by_task`, must be `at_least` so large, or
    below 0 if that is None.
    """
    values, share = difference(first, second, min_tasks)
    if not values:
        return None
    tasks = list(values)
    differences = list(values.values()) if by_task else [estimates.mean(values.values())]
    ours = _by_task(values) if by_task else f"{differences[0]} ({_titles(tasks)})"
    if max_share is not None and share is not None:
        ours += f", {share:.2%} trained"
    if at_least is None:
        verdict = estimates.below_zero(differences)
        agrees_if = "below 0"
    else:
        verdict = estimates.at_least(differences, at_least)
        agrees_if = f"at least {estimates.signed(at_least)}"
    if by_task:
        agrees_if += " on each task"
    if max_share is not None:
        agrees_if += f", at most {max_share:.1%} trained"
        if (share or 0) > max_share:
            verdict = "differs"
    return _row(claim, expected, ours + note, [first, second], tasks, agrees_if, verdict, min_tasks)


def _row(
    claim: str,
    expected: str,
    ours: str,
    sides: List[Side],
    tasks: List[str],
    agrees_if: str,
    verdict: str,
    min_tasks: int = 1,
) -> ClaimRow:
    by_task = {task: gaps(sides, [task]) for task in tasks}
    missing = [
        _where(text, [task for task in tasks if text in by_task[task]], tasks)
        for text in gaps(sides, tasks, min_tasks)
    ]
    counts = [
        _settings_tried(one.records[task]) for one in sides for task in tasks if task in one.records
    ]
    seeds = [one.chosen[task].seeds for one in sides for task in tasks if task in one.chosen]
    return ClaimRow(
        *(claim, expected, ours, agrees_if),
        *(f"{_range(counts)} per method and task", _range(seeds)),
        f"open: {', '.join(missing)}" if missing else verdict,
    )


def _settings_tried(records: List[Record]) -> int:
    """Returns the number of settings that the records, or the searches behind them, tried."""
    by_setting = selection.group_by(records, lambda r: selection.key_of(selection.setting(r)))
    return sum(max(r["flags"].get("trials", 1) for r in group) for group in by_setting.values())


def _where(text: str, tasks: List[str], all_tasks: List[str]) -> str:
    """Returns the text with the tasks to which it applies, unless these are all or none."""
    return f"{text} ({_titles(tasks)})" if 0 < len(tasks) < len(all_tasks) else text


def _range(counts: List[int]) -> str:
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def _titles(tasks: List[str]) -> str:
    if len(tasks) > 4:  # Their names would fill the table.
        return f"{len(tasks)} tasks"
    return report_tables.titles(tasks)


def _by_task(by_task: Dict[str, Estimate]) -> str:
    tasks = sorted(by_task, key=published.sort_key)
    return ", ".join(f"{by_task[task]} ({published.title(task)})" for task in tasks)
