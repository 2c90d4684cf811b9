"""Pictures of a training and of predictions, PNG files.

Matplotlib is imported for the first picture; its global state stays as it is. L labels.
"""

import io
import math
import posixpath
import warnings
from typing import Any, Dict, Mapping, Optional, Sequence

import numpy as np

from adapter_bert.files import atomic
from adapter_bert.shell import printing
from adapter_bert.training import losses

CURVES = "curves.png"  # In output_dir.
_MAX_COUNTS = 20  # Labels of a matrix whose cells show their counts.
_MAX_NAMES = 150  # Of a matrix's labels.
_DARK, _LIGHT = "#08519c", "#e6842a"  # They differ in grey, too.
_SMOOTHED = 10  # Losses of the training are averaged over this many.


def draw_curves(
    folder: str,
    evaluated: Mapping[int, Dict[str, Any]],
    score: str,
    saved_step: Optional[int] = None,
) -> str:
    """Draws the loss and, if there were evaluations, the dev score by step; returns the path.

    Args:
      folder: output_dir, with the training's event files.
      evaluated: step → dev scores.
      score: name of the score to draw, as in eval_f1. The dev loss is eval_loss, if it is there.
      saved_step: the step of the saved adapter.
    """
    panels = 2 if evaluated else 1
    figure = _figure(3.75 * panels, 3.2)
    left, *others = figure.subplots(1, panels, sharex=True, squeeze=False)[0]
    trained = losses.read(folder)
    if trained:
        steps, values = np.array(trained).T
        left.plot(steps, values, color=_DARK, alpha=0.3, linewidth=0.8)
        left.plot(steps, _smooth(values), color=_DARK, label="training")
    steps = sorted(evaluated)
    for axes, name in zip((left, *others), ("eval_loss", score)):
        points = [(step, evaluated[step][name]) for step in steps if name in evaluated[step]]
        if points:
            axes.plot(*zip(*points), color=_LIGHT, marker="o", markersize=4, label="dev")
    for axes, label in zip((left, *others), ("loss", score[len("eval_") :].replace("_", " "))):
        if saved_step is not None:
            axes.axvline(saved_step, color="0.3", linestyle="--", linewidth=1, label="saved")
        axes.set_xlabel("step")
        axes.set_ylabel(_literal(label))
        axes.grid(color="0.9")
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False)
    return _save(figure, posixpath.join(folder, CURVES))


def _smooth(values: np.ndarray) -> np.ndarray:
    """Returns the means of each value and up to 9 before it."""
    sums = np.cumsum(np.concatenate([[0.0], values]))
    ends = np.arange(1, len(sums))
    starts = np.maximum(ends - _SMOOTHED, 0)
    return (sums[ends] - sums[starts]) / (ends - starts)


def draw_matrix(path: str, title: str, names: Sequence[str], matrix: np.ndarray, unit: str) -> str:
    """Draws a confusion matrix, colored by each row's shares, and returns its path.

    Args:
      path: of the picture.
      title: of the picture.
      names: of the labels.
      matrix: int array [L, L]; [i, j] counts label i predicted as j.
      unit: what a label is called.
    """
    size = len(names)
    side = min(max(3.5, 1.8 + 0.5 * size), 12)
    figure = _figure(side + 0.8, side)
    axes = figure.subplots()
    shares = matrix / np.maximum(matrix.sum(axis=1, keepdims=True), 1)
    image = axes.imshow(shares, cmap="Blues", vmin=0, vmax=1)
    figure.colorbar(image, ax=axes, label=f"share of the true {unit}", shrink=0.8, aspect=30)
    # A row's height in points limits the size of its name.
    font_size = min(9, 0.8 * 72 * 0.7 * side / size)
    every = math.ceil(size / _MAX_NAMES)
    ticks = range(0, size, every)
    shown = [_literal(name) for name in names[::every]]
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    axes.set_xticklabels(shown, rotation=90, fontsize=font_size)
    axes.set_yticklabels(shown, fontsize=font_size)
    axes.set_xlabel(f"predicted {unit}")
    axes.set_ylabel(f"true {unit}")
    axes.set_title(_literal(title))
    for (row, column), count in np.ndenumerate(matrix) if size <= _MAX_COUNTS else ():
        color = "white" if shares[row, column] > 0.5 else "black" if count else "0.75"
        axes.text(column, row, str(count), ha="center", va="center", color=color, fontsize=8)
    return _save(figure, path)


def draw_scatter(path: str, title: str, true: np.ndarray, predicted: np.ndarray) -> str:
    """Draws predicted numbers over the true ones, and returns the picture's path."""
    figure = _figure(4.5, 4.2)
    axes = figure.subplots()
    ends = [
        float(min(np.min(true), np.min(predicted))),
        float(max(np.max(true), np.max(predicted))),
    ]
    if np.isfinite(ends).all():
        axes.plot(ends, ends, color="0.6", linewidth=1, linestyle="--")
    axes.scatter(true, predicted, s=8, color=_DARK, alpha=0.4, linewidths=0)
    axes.set_xlabel("true")
    axes.set_ylabel("predicted")
    axes.set_title(_literal(title))
    axes.grid(color="0.9")
    return _save(figure, path)


def draw_bars(
    path: str, title: str, x_label: str, names: Sequence[str], values: Sequence[float]
) -> str:
    """Draws a horizontal bar for each value, from 0 to 100, and returns the picture's path."""
    figure = _figure(5, 1.2 + 0.3 * len(names))
    axes = figure.subplots()
    positions = np.arange(len(names))
    axes.barh(positions, values, color=_DARK, height=0.7)
    for position, value in zip(positions, values):
        axes.text(value + 1, position, f"{value:.1f}", va="center", fontsize=8)
    axes.set_yticks(positions)
    axes.set_yticklabels(map(_literal, names))
    axes.invert_yaxis()
    axes.set_xlim(0, 110)
    axes.set_xlabel(x_label)
    axes.set_title(_literal(title))
    return _save(figure, path)


def _figure(width: float, height: float) -> Any:
    """Returns an empty figure; sizes are in inches."""
    from matplotlib.figure import Figure

    return Figure((width, height), dpi=150, constrained_layout=True)


def _literal(text: str) -> str:
    """Returns a text as it is drawn: on one line, with no $ for Matplotlib to begin a formula."""
    return printing.one_line(text).replace("$", r"\$")


def _save(figure: Any, path: str) -> str:
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    stream = io.BytesIO()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Of a name's characters that the font does not have.
        FigureCanvasAgg(figure).print_png(stream)
    atomic.write_atomically(path, stream.getvalue())
    return path
