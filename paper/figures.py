"""Draws panels of curves and heatmaps, readable in grey too.

Equal panels give equal bytes for one version of matplotlib.
"""

import collections
import io
import math
from typing import Any, Dict, List, NamedTuple, Optional, Sequence, Tuple, Union

import matplotlib
import numpy as np
from matplotlib import patheffects, ticker
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.container import ErrorbarContainer
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch

from adapter_bert.shell import printing

_COLUMNS = 3  # Panels side by side.
# Inches: a column and a page of a two-column paper.
_COLUMN_WIDTH, _PAGE_WIDTH = 3.25, 6.75
_PANEL_HEIGHTS = {1: 2.5, 2: 2.5, 3: 2.1}  # By the number of columns.
_LEGEND_ROW, _LEGEND_MARGIN = 0.17, 0.06
_MAX_TICKS = 8  # On a heatmap's axis: more two-digit numbers would touch.
_PADDING = {"w_pad": 0.06, "h_pad": 0.05}  # Inches between panels.
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
    "svg.hashsalt": "adapter-bert",  # Without it, ids are random.
}


class Style(NamedTuple):
    """A series' color, marker and line style, in matplotlib's names."""

    color: str
    marker: str
    line: object


# Dark and light alternate, so that neighbours differ in grey.
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
      points: (x, y, low, high), with x > 0 on a logarithmic axis. low and high are the ends
        of the error bar, or of the band if there are several points; None for no bar.
      band: name of the band in the legend; None for error bars.
      names: texts at the points, or empty.
    """

    label: str
    style: Style
    points: List[Tuple[float, float, Optional[float], Optional[float]]]
    band: Optional[str] = None
    names: Tuple[str, ...] = ()


class Panel(NamedTuple):
    """Series over a logarithmic x axis, or over a linear one of integers.

    `has_zero_line` draws a line at y = 0, and `line` (label, y) one that the legend names.
    """

    title: str
    x_label: str
    y_label: str
    series: List[Series]
    has_zero_line: bool = False
    is_linear: bool = False
    line: Optional[Tuple[str, float]] = None


class Heatmap(NamedTuple):
    """A square matrix of numbers, [row, column]; NaN is an empty cell.

    All heatmaps of a figure share one color scale.
    """

    title: str
    x_label: str
    y_label: str
    values: np.ndarray
    color_label: str


Panels = Sequence[Union[Panel, Heatmap]]
_Legend = Dict[str, Any]  # Label → artist.


def draw(panels: Panels) -> Dict[str, bytes]:
    """Draws panels as `make_figure` does.

    Returns:
      File ending, "png" or "svg" → content.
    """
    with matplotlib.rc_context(_RC):
        figure = make_figure(panels)
        return {"png": _encode(figure, "png", dpi=200), "svg": _encode(figure, "svg")}


def make_figure(panels: Panels) -> Figure:
    """Returns a figure of panels with one legend below: as wide as a column, or a page.

    Args:
      panels: at least one. Equal x labels share limits.
    """
    rows = math.ceil(len(panels) / _COLUMNS)
    columns = math.ceil(len(panels) / rows)  # Balanced rows: four panels are two and two.
    width, height = _COLUMN_WIDTH if len(panels) == 1 else _PAGE_WIDTH, _PANEL_HEIGHTS[columns]
    figure = Figure((width, rows * height), constrained_layout=_PADDING)
    cells = figure.add_gridspec(rows + 1, columns)
    limits, legend, maps = _compute_limits(panels), {}, []
    colors = _color_range(panels)
    for index, panel in enumerate(panels):
        axes = figure.add_subplot(cells[index // columns, index % columns])
        axes.set_title(_literal(panel.title))
        axes.set_xlabel(panel.x_label)
        axes.set_ylabel(_literal(panel.y_label))
        if isinstance(panel, Heatmap):
            maps.append((_draw_heatmap(axes, panel, colors), axes, panel.color_label))
        else:
            _draw_panel(axes, panel, legend, limits.get(panel.x_label))
    if maps:
        image, _, label = maps[0]
        first_row = [axes for _, axes, _ in maps[:columns]]
        # On top, so that all panels keep their width.
        figure.colorbar(image, ax=first_row, label=label, location="top", aspect=40, shrink=0.6)
    legend_height = _draw_legend(figure, legend) if legend else 0.0
    # An empty row reserves the legend's space.
    cells.set_height_ratios([height] * rows + [max(legend_height, 1e-3)])
    figure.set_size_inches(width, rows * height + legend_height)
    return figure


def _literal(text: str) -> str:
    """Returns a text as it is drawn: on one line, with no $ for Matplotlib to begin a formula."""
    return printing.one_line(text).replace("$", r"\$")


def _draw_panel(
    axes: Axes, panel: Panel, legend: _Legend, limits: Optional[Tuple[float, float]]
) -> None:
    """Draws a panel's series, and adds their entries to the figure's `legend`."""
    for series in panel.series:
        artist = _draw_series(axes, series)
        # The legend prefers a panel's line to a single point.
        if len(series.points) > 1 or series.label not in legend:
            legend[series.label] = artist
    for band in [s.band for s in panel.series if s.band and len(s.points) > 1]:
        # Moves the band to the legend's end.
        legend[band] = legend.pop(band, Patch(facecolor="0.5", edgecolor="0.3", alpha=0.3))
    if panel.has_zero_line:
        axes.axhline(0, color="0.4", linewidth=0.8, zorder=1)
    if panel.line:
        label, y = panel.line
        legend[label] = axes.axhline(y, color="0.4", linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)
    if panel.is_linear or not limits:
        integer_ticks = {"steps": [1, 2, 5, 10], "integer": True, "min_n_ticks": 1}
        axes.xaxis.set_major_locator(ticker.MaxNLocator("auto", **integer_ticks))
    else:
        _set_logarithmic(axes, *limits)


def _draw_legend(figure: Figure, legend: _Legend) -> float:
    """Draws the legend at the bottom, in as few rows as possible; returns its height in inches."""
    renderer = FigureCanvasAgg(figure).get_renderer()
    for columns in range(len(legend), 0, -1):
        artist = figure.legend(
            legend.values(),
            list(map(_literal, legend)),
            loc="lower center",
            ncol=columns,
            frameon=False,
        )
        artist.set_in_layout(False)
        if columns == 1 or artist.get_window_extent(renderer).width < figure.bbox.width:
            break
        artist.remove()
    return math.ceil(len(legend) / columns) * _LEGEND_ROW + _LEGEND_MARGIN


def _encode(figure: Figure, ending: str, **options: Any) -> bytes:
    stream = io.BytesIO()
    # Dates and versions would make equal figures differ.
    metadata = {"svg": {"Date": None, "Creator": None}, "png": {"Software": None}}[ending]
    figure.savefig(stream, format=ending, metadata=metadata, **options)
    return stream.getvalue()


def _compute_limits(panels: Panels) -> Dict[str, Tuple[float, float]]:
    """Returns x label → (lower, upper) limits of logarithmic axes."""
    values_by_label = collections.defaultdict(list)
    for panel in panels:
        if isinstance(panel, Panel) and not panel.is_linear:
            for series in panel.series:
                values_by_label[panel.x_label] += [point[0] for point in series.points]
    limits = {}
    for label, values in values_by_label.items():
        # A margin, so that markers at the ends are not cut.
        margin = max(1.6, (max(values) / min(values)) ** 0.05)
        limits[label] = min(values) / margin, max(values) * margin
    return limits


def _set_logarithmic(axes: Axes, lower: float, upper: float) -> None:
    """Sets a logarithmic x scale, extended to two powers of ten, because only these have labels."""
    while math.floor(math.log10(upper)) - math.ceil(math.log10(lower)) < 1:
        above = 10.0 ** (math.floor(math.log10(upper)) + 1)
        below = 10.0 ** (math.ceil(math.log10(lower)) - 1)
        if above / upper < lower / below:
            upper = 1.2 * above
        else:
            lower = below / 1.2
    axes.set_xscale("log")
    axes.set_xlim(lower, upper)
    axes.xaxis.set_minor_formatter(ticker.NullFormatter())


def _draw_series(axes: Axes, series: Series) -> ErrorbarContainer:
    """Draws a series; returns the artist for the legend."""
    color, marker, line = series.style
    x, y, low, high = (np.array(values, float) for values in zip(*series.points))
    if series.band and len(x) > 1:  # A single point has an error bar instead.
        axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
        for edge in (low, high):
            axes.plot(x, edge, color=color, linestyle=line, linewidth=0.6)
        low = high = np.full(len(y), np.nan)  # No error bars in addition.
    for name, point in zip(series.names, zip(x, y)):
        offset: Any = {"textcoords": "offset points", "xytext": (0, 4), "ha": "center"}
        text = axes.annotate(_literal(name), point, color=color, fontsize=6.5, **offset)
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


def _color_range(panels: Panels) -> Tuple[float, float]:
    """Returns (vmin, vmax) over all heatmaps; NaN without any."""
    values = [panel.values for panel in panels if isinstance(panel, Heatmap)]
    lowest, highest = map(np.nanmin, values), map(np.nanmax, values)
    return min(lowest, default=np.nan), max(highest, default=np.nan)


def _draw_heatmap(axes: Axes, panel: Heatmap, colors: Tuple[float, float]) -> AxesImage:
    """Draws a heatmap; returns the image, for a color bar."""
    vmin, vmax = colors
    # Light means a small loss, in color and in grey; white means no value.
    image = axes.imshow(
        *(np.ma.masked_invalid(panel.values), "cividis"), aspect="auto", vmin=vmin, vmax=vmax
    )
    axes.grid(False)
    ticks = range(0, len(panel.values), math.ceil(len(panel.values) / _MAX_TICKS))
    axes.set_xticks(ticks)
    axes.set_yticks(ticks)
    if len(panel.values) <= 12:  # More numbers would be unreadable.
        _write_values(axes, panel.values, (vmin + vmax) / 2)
    return image


def _write_values(axes: Axes, values: np.ndarray, midpoint: float) -> None:
    """Writes each number into its cell, in white or black for contrast."""
    decimals = 1 if len(values) <= 8 else 0
    texts = {
        cell: f"{round(value, decimals) + 0.0:.{decimals}f}".replace("-", "−")  # No "-0".
        for cell, value in np.ndenumerate(values)
        if not np.isnan(value)
    }
    # A row is 120 points wide; a character's width is 0.6 of the font size, 0.7 with spacing.
    size = min(7, 120 / len(values) / (0.7 * max(map(len, texts.values()), default=1)))
    for (row, column), text in texts.items():
        color = "white" if values[row, column] < midpoint else "black"
        axes.text(column, row, text, ha="center", va="center", color=color, fontsize=size)
