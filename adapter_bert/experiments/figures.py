"""Drawing: panels of curves and of heatmaps on one sheet, which prints well in grey.

Nothing here knows of trainings. The same panels give the same bytes, with one matplotlib.
"""

import collections
import io
import math
from typing import Any, Dict, List, NamedTuple, Optional, Tuple

import matplotlib
import numpy as np
from matplotlib import ticker
from matplotlib.figure import Figure

_COLUMNS = 3  # Panels beside each other; three of them are a page wide.
_PANEL_SIZE, _SINGLE_SIZE = (2.9, 2.6), (4.2, 3.2)  # Inches.
_MAX_TICKS = 8  # Of a heatmap's axis: more numbers of two digits would touch.
_PADDING = {"w_pad": 0.08, "h_pad": 0.06}  # Inches between panels: labels keep their distance.
_RC: Any = {
    "font.size": 8,
    "axes.titlesize": 9,
    "axes.grid": True,
    "grid.color": "0.9",
    "axes.axisbelow": True,
    "lines.linewidth": 1.2,
    "lines.markersize": 4.5,
    "svg.hashsalt": "adapter-bert",  # Else each file has random ids.
}


class Style(NamedTuple):
    """How a series is told from others, without colour too: see matplotlib's names."""

    color: str
    marker: str
    line: object


# Dark and light take turns, so that neighbours differ in grey.
STYLES = (
    Style("#08519c", "o", "-"),
    Style("#e6842a", "s", "--"),
    Style("#1b7837", "^", ":"),
    Style("#c994c7", "D", "-."),
    Style("#252525", "v", (0, (6, 1, 1, 1, 1, 1))),
    Style("#41b6c4", "P", (0, (1, 1))),
    Style("#7f0000", "X", (0, (8, 2))),
    Style("#999999", "<", (0, (3, 1, 1, 1))),
)


class Series(NamedTuple):
    """Points of one kind, joined by a line.

    Attributes:
      label: what the legend says of it.
      style: `Style`.
      points: list of (x, y, low, high), x above 0 on a logarithmic axis; low and high are the ends
        of the error bar, or of the band if `has_band` and there are several points; None where
        there is none.
    """

    label: str
    style: Style
    points: List[Tuple[float, float, Optional[float], Optional[float]]]
    has_band: bool = False


class Panel(NamedTuple):
    """Series over a logarithmic x axis, or a `is_linear` one of whole numbers.

    `has_zero_line` draws a line at y = 0.
    """

    title: str
    x_label: str
    y_label: str
    series: List[Series]
    has_zero_line: bool = False
    is_linear: bool = False


class Heatmap(NamedTuple):
    """A square matrix of numbers, [row, column]; what is NaN stays empty."""

    title: str
    x_label: str
    y_label: str
    values: np.ndarray
    color_label: str


def draw(panels):
    """Draws panels as `make_figure` does.

    Returns:
      A dict from file endings, "png" and "svg", to bytes.
    """
    with matplotlib.rc_context(_RC):
        figure = make_figure(panels)
        return {"png": _encode(figure, "png", dpi=200), "svg": _encode(figure, "svg")}


def make_figure(panels):
    """Panels side by side, with one legend below them, as matplotlib's Figure.

    Args:
      panels: list of `Panel` and `Heatmap`, at least one. Those with the same x label share limits.
    """
    rows = math.ceil(len(panels) / _COLUMNS)
    columns = math.ceil(len(panels) / rows)  # Four panels are two and two.
    width, height = _PANEL_SIZE if len(panels) > 1 else _SINGLE_SIZE
    figure = Figure((columns * width, rows * height), constrained_layout=_PADDING)
    limits, legend = _compute_limits(panels), {}
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, index + 1)
        axes.set_title(panel.title)
        axes.set_xlabel(panel.x_label)
        axes.set_ylabel(panel.y_label)
        if isinstance(panel, Heatmap):
            _draw_heatmap(figure, axes, panel)
        else:
            for series in panel.series:
                artist = _draw_series(axes, series)
                # A line in any panel is what the legend shows, rather than a lone point.
                if len(series.points) > 1 or series.label not in legend:
                    legend[series.label] = artist
            if panel.has_zero_line:
                axes.axhline(0, color="0.4", linewidth=0.8, zorder=1)
            if panel.is_linear:
                integer_ticks = {"steps": [1, 2, 5, 10], "integer": True, "min_n_ticks": 1}
                axes.xaxis.set_major_locator(ticker.MaxNLocator("auto", **integer_ticks))
            else:
                _set_logarithmic(axes.xaxis, *limits[panel.x_label])
    if legend:
        # Below the panels, where it covers nothing; what is saved is cut to what is drawn.
        position: Dict[str, Any] = {
            "loc": "upper center",
            "bbox_to_anchor": (0.5, -0.01),
            "ncol": 2 * columns,
        }
        figure.legend(legend.values(), legend.keys(), frameon=False, **position)
    return figure


def _encode(figure, ending, **options):
    stream = io.BytesIO()
    # A date, or the version that made it, would make each file another.
    metadata = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}[ending]
    figure.savefig(stream, format=ending, bbox_inches="tight", metadata=metadata, **options)
    return stream.getvalue()


def _compute_limits(panels):
    """x label → (least, greatest) x of logarithmic axes, with some room."""
    values_by_label = collections.defaultdict(list)
    for panel in panels:
        if isinstance(panel, Panel) and not panel.is_linear:
            for series in panel.series:
                values_by_label[panel.x_label] += [point[0] for point in series.points]
    limits = {}
    for label, values in values_by_label.items():
        # Else a long axis cuts its last markers.
        margin = max(1.6, (max(values) / min(values)) ** 0.05)
        limits[label] = min(values) / margin, max(values) * margin
    return limits


def _set_logarithmic(axis, lower, upper):
    """Labels each power of ten, and where these are few also some multiples."""
    axis.axes.set_xscale("log")
    axis.axes.set_xlim(lower, upper)
    axis.set_minor_formatter(ticker.NullFormatter())
    if upper / lower < 1000:
        multiples = (1, 2, 5) if upper / lower < 30 else (1, 3)
        axis.set_major_locator(ticker.LogLocator(subs=multiples))
        axis.set_major_formatter(ticker.FuncFormatter(_format_tick))


def _format_tick(value, position):
    """A tick's label: 2e-5, 0.5, 20, 2e6."""
    del position
    if 0.01 <= value < 10000:
        return f"{value:g}"
    mantissa, exponent = f"{value:.0e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def _draw_series(axes, series):
    """Returns what the legend shows of it."""
    color, marker, line = series.style
    x, y, low, high = (np.array(values, float) for values in zip(*series.points))
    if series.has_band and len(x) > 1:  # A lone point's would have no width: it has a bar.
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        for edge in (low, high):
            axes.plot(x, edge, color=color, linestyle=line, linewidth=0.6)
        low = high = np.full(len(y), np.nan)  # No bars on top of it.
    errors = np.stack([y - low, high - y])
    return axes.errorbar(
        *(x, y, None if np.isnan(errors).all() else errors),
        color=color,
        marker=marker,
        linestyle=line if len(x) > 1 else "",
        capsize=2,
        elinewidth=0.8,
    )


def _draw_heatmap(figure, axes, panel):
    # Light means little lost, in colour and in print; white is no value at all.
    image = axes.imshow(np.ma.masked_invalid(panel.values), cmap="cividis", aspect="auto")
    axes.grid(False)
    ticks = range(0, len(panel.values), math.ceil(len(panel.values) / _MAX_TICKS))
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    if len(panel.values) <= 12:  # Of more the numbers would not be readable.
        _write_values(axes, panel.values)
    figure.colorbar(image, ax=axes, label=panel.color_label)


def _write_values(axes, values):
    """Writes each number into its cell, light on dark and dark on light."""
    midpoint = (np.nanmin(values) + np.nanmax(values)) / 2
    decimals = 1 if len(values) <= 8 else 0
    texts = {
        cell: f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")  # No "-0".
        for cell, value in np.ndenumerate(values)
        if not np.isnan(value)
    }
    # All cells of a row have 120 points; a character takes 0.6 of its size, 0.7 with air.
    size = min(7, 120 / len(values) / (0.7 * max(map(len, texts.values()), default=1)))
    for (row, column), text in texts.items():
        color = "white" if values[row, column] < midpoint else "black"
        axes.text(column, row, text, ha="center", va="center", color=color, fontsize=size)
