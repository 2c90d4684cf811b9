"""Drawing: panels of curves and of heatmaps on one sheet, which prints well in grey.

Nothing here knows of trainings. The same panels give the same bytes, with one matplotlib.
"""

import collections
import io
import math
from typing import Any, List, NamedTuple, Optional, Tuple

import matplotlib
import numpy as np
from matplotlib import patheffects, ticker
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import Patch

_COLUMNS = 3  # Panels side by side.
# Inches. A column and a page of the paper, which is set in two columns.
_COLUMN_WIDTH, _PAGE_WIDTH = 3.25, 6.75
_PANEL_HEIGHTS = {1: 2.5, 2: 2.5, 3: 2.1}  # By the number of columns.
_LEGEND_ROW, _LEGEND_MARGIN = 0.17, 0.06
_MAX_TICKS = 8  # Of a heatmap's axis: more numbers of two digits would touch.
_PADDING = {"w_pad": 0.06, "h_pad": 0.05}  # Inches between panels: labels keep their distance.
_RC: Any = {
    "font.size": 7.5,
    "axes.titlesize": 8.5,
    "legend.fontsize": 7,
    "legend.handlelength": 1.9,
    "legend.handletextpad": 0.4,
    "legend.columnspacing": 1.0,
    "legend.borderaxespad": 0.1,
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
      label: its name in the legend.
      style: `Style`.
      points: list of (x, y, low, high), x above 0 on a logarithmic axis; low and high are the ends
        of the error bar, or of the band if there are several points; None where there is none.
      band: name of the band in the legend; None for error bars.
      names: text at each point; none if empty.
      singles: list of (x, y) of hollow marks: single values, where a mean hides two groups.
      is_right: whether the axis on the right side is its y axis.
    """

    label: str
    style: Style
    points: List[Tuple[float, float, Optional[float], Optional[float]]]
    band: Optional[str] = None
    names: Tuple[str, ...] = ()
    singles: Tuple[Tuple[float, float], ...] = ()
    is_right: bool = False


class Panel(NamedTuple):
    """Series over a logarithmic x axis, or a `is_linear` one of whole numbers.

    `has_zero_line` draws a line at y = 0; `right_label` names a second y axis on the right side;
    `has_legend` gives the panel a legend of its own, inside.
    """

    title: str
    x_label: str
    y_label: str
    series: List[Series]
    has_zero_line: bool = False
    is_linear: bool = False
    right_label: Optional[str] = None
    has_legend: bool = False


class Heatmap(NamedTuple):
    """A square matrix of numbers, [row, column]; NaN is an empty cell.

    All heatmaps of a figure have one colour scale.
    """

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
    """Returns panels side by side with one legend below them: a column wide, or a page.

    Args:
      panels: list of `Panel` and `Heatmap`, at least one. Those with the same x label share limits.
    """
    rows = math.ceil(len(panels) / _COLUMNS)
    columns = math.ceil(len(panels) / rows)  # Four panels are two and two.
    width, height = _COLUMN_WIDTH if len(panels) == 1 else _PAGE_WIDTH, _PANEL_HEIGHTS[columns]
    figure = Figure((width, rows * height), constrained_layout=_PADDING)
    cells = figure.add_gridspec(rows + 1, columns)
    limits, legend, maps = _compute_limits(panels), {}, []
    colors = _color_range(panels)
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(cells[index // columns, index % columns])
        axes.set_title(panel.title)
        axes.set_xlabel(panel.x_label)
        axes.set_ylabel(panel.y_label)
        if isinstance(panel, Heatmap):
            maps.append((_draw_heatmap(axes, panel, colors), axes, panel.color_label))
        else:
            _draw_panel(axes, panel, legend, limits.get(panel.x_label))
    if maps:
        image, _, label = maps[0]
        first_row = [axes for _, axes, _ in maps[:columns]]
        # On top it takes no width from the panels below.
        figure.colorbar(image, ax=first_row, label=label, location="top", aspect=40, shrink=0.6)
    legend_height = _draw_legend(figure, legend) if legend else 0.0
    # An empty row keeps the legend's place.
    cells.set_height_ratios([height] * rows + [max(legend_height, 1e-3)])
    figure.set_size_inches(width, rows * height + legend_height)
    return figure


def _draw_panel(axes, panel, legend, limits):
    """Draws a panel's series; what the figure's legend shows of them is added to `legend`."""
    right = axes.twinx() if panel.right_label else axes
    if panel.right_label:
        right.set_ylabel(panel.right_label)
        right.grid(False)
    own_legend = {}
    entries = own_legend if panel.has_legend else legend
    for series in panel.series:
        artist = _draw_series(right if series.is_right else axes, series)
        # A line in any panel is what the legend shows, rather than a lone point.
        if len(series.points) > 1 or series.label not in entries:
            entries[series.label] = artist
    for band in [s.band for s in panel.series if s.band and len(s.points) > 1]:
        # Last in the legend.
        entries[band] = entries.pop(band, Patch(facecolor="0.5", edgecolor="0.3", alpha=0.3))
    if own_legend:
        # On the axes that lie on top.
        right.legend(own_legend.values(), own_legend.keys(), loc="lower left")
    if panel.has_zero_line:
        axes.axhline(0, color="0.4", linewidth=0.8, zorder=1)
    if panel.is_linear:
        integer_ticks = {"steps": [1, 2, 5, 10], "integer": True, "min_n_ticks": 1}
        axes.xaxis.set_major_locator(ticker.MaxNLocator("auto", **integer_ticks))
    else:
        _set_logarithmic(axes.xaxis, *limits)


def _draw_legend(figure, legend):
    """Draws the legend at the bottom, in as few rows as fit; returns its height in inches."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    for columns in range(len(legend), 0, -1):
        artist = figure.legend(
            *(legend.values(), legend.keys()), loc="lower center", ncol=columns, frameon=False
        )
        artist.set_in_layout(False)
        if columns == 1 or artist.get_window_extent(renderer).width < figure.bbox.width:
            break
        artist.remove()
    return math.ceil(len(legend) / columns) * _LEGEND_ROW + _LEGEND_MARGIN


def _encode(figure, ending, **options):
    stream = io.BytesIO()
    # A date, or the version that made it, would make each file another.
    metadata = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}[ending]
    figure.savefig(stream, format=ending, metadata=metadata, **options)
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
    """Sets limits that have at least two powers of ten, which alone are labelled."""
    while math.floor(math.log10(upper)) - math.ceil(math.log10(lower)) < 1:
        above = 10.0 ** (math.floor(math.log10(upper)) + 1)
        below = 10.0 ** (math.ceil(math.log10(lower)) - 1)
        if above / upper < lower / below:
            upper = 1.2 * above
        else:
            lower = below / 1.2
    axis.axes.set_xscale("log")
    axis.axes.set_xlim(lower, upper)
    axis.set_minor_formatter(ticker.NullFormatter())


def _draw_series(axes, series):
    """Returns what the legend shows of it."""
    color, marker, line = series.style
    x, y, low, high = (np.array(values, float) for values in zip(*series.points))
    if series.band and len(x) > 1:  # A lone point's would have no width: it has a bar.
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        for edge in (low, high):
            axes.plot(x, edge, color=color, linestyle=line, linewidth=0.6)
        low = high = np.full(len(y), np.nan)  # No bars on top of it.
    for single in series.singles:
        axes.plot(*single, color=color, marker=marker, fillstyle="none", linestyle="")
    for name, point in zip(series.names, zip(x, y)):
        offset = {"textcoords": "offset points", "xytext": (0, 4), "ha": "center"}
        text = axes.annotate(name, point, color=color, fontsize=6.5, **offset)
        text.set_path_effects([patheffects.withStroke(linewidth=1.5, foreground="white")])
    errors = np.stack([y - low, high - y])
    return axes.errorbar(
        *(x, y, None if np.isnan(errors).all() else errors),
        color=color,
        marker=marker,
        linestyle=line if len(x) > 1 else "",
        capsize=2,
        elinewidth=0.8,
    )


def _color_range(panels):
    """Returns (vmin, vmax) of all heatmaps together; None without one."""
    values = [panel.values for panel in panels if isinstance(panel, Heatmap)]
    if not values:
        return None
    return min(map(np.nanmin, values)), max(map(np.nanmax, values))


def _draw_heatmap(axes, panel, colors):
    """Returns the image, of which a colour bar can be drawn."""
    vmin, vmax = colors
    # Light means little lost, in colour and in print; white is no value at all.
    image = axes.imshow(
        *(np.ma.masked_invalid(panel.values), "cividis"), aspect="auto", vmin=vmin, vmax=vmax
    )
    axes.grid(False)
    ticks = range(0, len(panel.values), math.ceil(len(panel.values) / _MAX_TICKS))
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    if len(panel.values) <= 12:  # Of more the numbers would not be readable.
        _write_values(axes, panel.values, (vmin + vmax) / 2)
    return image


def _write_values(axes, values, midpoint):
    """Writes each number into its cell, light on dark and dark on light."""
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
