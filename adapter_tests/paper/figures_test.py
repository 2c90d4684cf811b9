"""Tests of figures.py: the files and the layout of the figures."""

import io
import xml.dom.minidom

import matplotlib.image
import matplotlib.lines
import numpy as np
import tensorflow.compat.v1 as tf
from matplotlib.backends.backend_agg import FigureCanvasAgg

from adapter_bert.paper import figures
from adapter_bert.paper.figures import STYLES, Heatmap, Panel, Series


def panels():
    """Returns panels: curves with and without error bars, a single point, a band, a heatmap."""
    curve = Series("curve", STYLES[0], [(1e2, 5.0, 4.0, 6.0), (1e5, 7.0, None, None)])
    point = Series("point", STYLES[1], [(3e7, 6.0, 5.5, 6.5)])
    points = [(2e-5, -1.0, -3.0, 0.5), (1e-3, -2.0, -4.0, -1.0)]
    band = Series("band", STYLES[2], points, "20th to 80th", ("8", "64"))
    values = np.where(np.triu(np.ones([3, 3])) > 0, -np.arange(9.0).reshape([3, 3]), np.nan)
    return [
        Panel("one", "parameters", "accuracy (%)", [curve, point]),
        Panel("other", "parameters", "accuracy (%)", [point], line=("majority", 4.0)),
        Panel("bands", "rate", "difference", [band], has_zero_line=True),
        Heatmap("map", "last", "first", values, "points"),
    ]


def drawn(some):
    """Returns a figure after its layout, and its renderer."""
    with matplotlib.rc_context(figures._RC):
        figure = figures.make_figure(some)
        canvas = FigureCanvasAgg(figure)
        canvas.draw()
    return figure, canvas.get_renderer()


class DrawTest(tf.test.TestCase):
    def test_drawn_files_are_reproducible(self):
        files, again = figures.draw(panels()), figures.draw(panels())
        self.assertEqual(set(files), {"png", "svg"})
        self.assertEqual(files, again)
        root = xml.dom.minidom.parseString(files["svg"]).documentElement
        self.assertEqual(root.tagName, "svg")
        self.assertNotIn(b"<dc:date>", files["svg"])

    def test_no_content_is_cut_off_at_the_edges(self):
        for some in (panels(), panels()[:1], panels()[2:3]):
            image = matplotlib.image.imread(io.BytesIO(figures.draw(some)["png"]))[..., :3]
            edges = [image[:2], image[-2:], image[:, :2], image[:, -2:]]
            self.assertTrue(all(np.all(edge == 1) for edge in edges))
            self.assertLess(image.min(), 0.2)

    def test_line_is_in_the_legend_and_within_the_axis(self):
        figure, _ = drawn(panels())
        (legend,) = figure.legends
        self.assertIn("majority", [text.get_text() for text in legend.get_texts()])
        lower, upper = figure.axes[1].get_ylim()
        self.assertTrue(lower < 4.0 < upper)

    def test_legend_does_not_overlap_any_panel(self):
        for some in (panels(), panels()[:1]):
            figure, renderer = drawn(some)
            (legend,) = figure.legends
            box = legend.get_window_extent(renderer)
            for axes in figure.axes:
                self.assertFalse(box.overlaps(axes.get_tightbbox(renderer)), axes.get_title())
            found = [text.get_text() for text in legend.get_texts()]
            entries = ["curve", "point", "majority", "band", "20th to 80th"]
            self.assertEqual(found, entries if len(some) > 1 else entries[:2])

    def test_dollars_in_names_of_tasks_are_drawn_literally(self):
        name = "$AAPL_$TSLA"
        curve = Series(name, STYLES[0], [(1e3, 5.0, 4.0, 6.0)])
        for panel in (Panel(name, "x", "y", [curve]), Heatmap(name, "x", "y", np.eye(2), "points")):
            svg = figures.draw([panel])["svg"].decode()
            self.assertIn(f"<!-- {name} -->", svg)

    def test_legend_shows_a_line_if_any_panel_draws_one(self):
        lone = Series("curve", STYLES[0], [(1e3, 5.0, 4.0, 6.0)])
        other = Panel("other", "parameters", "accuracy (%)", [lone])
        for some in ([panels()[0], other], [other, panels()[0]]):
            figure, _ = drawn(some)
            lines = figure.legends[0].findobj(matplotlib.lines.Line2D)
            self.assertIn("-", [line.get_linestyle() for line in lines if line.get_visible()])

    def test_band_with_one_point_is_drawn_as_a_bar(self):
        lone = Series("band", STYLES[0], [(1e3, 5.0, 4.0, 6.5)], "20th to 80th")
        figure, _ = drawn([Panel("bands", "parameters", "difference", [lone])])
        ((bar,),) = [bars.get_segments() for bars in figure.axes[0].collections]
        self.assertAllClose(bar, [[1e3, 4.0], [1e3, 6.5]])

    def test_panels_with_the_same_x_axis_share_its_limits(self):
        figure, _ = drawn(panels())
        one, other, bands = figure.axes[:3]
        self.assertEqual(one.get_xlim(), other.get_xlim())
        self.assertLess(one.get_xlim()[0], 1e2)
        self.assertGreater(one.get_xlim()[1], 3e7)
        self.assertLess(bands.get_xlim()[1], 1)

    def test_x_axis_labels_are_powers_of_ten_without_overlap(self):
        figure, renderer = drawn(panels())
        bands = figure.axes[2].xaxis
        least, greatest = bands.get_view_interval()
        shown = [
            label
            for label in bands.get_ticklabels()
            if least <= label.get_position()[0] <= greatest
        ]
        texts = [label.get_text() for label in shown]
        self.assertEqual(texts, [f"$\\mathdefault{{10^{{{power}}}}}$" for power in (-4, -3)])
        boxes = [label.get_window_extent(renderer) for label in shown]
        for one, other in zip(boxes, boxes[1:]):
            self.assertLess(one.x1, other.x0)

    def test_every_log_axis_labels_two_powers_of_ten(self):
        for points in ([2e-5], [3e2], [1e3], [0.9, 1.1], [2e-5, 1e-3], [1e-7, 1.0]):
            series = Series("curve", STYLES[0], [(x, 5.0, None, None) for x in points])
            figure, _ = drawn([Panel("one", "x", "y", [series])])
            low, high = figure.axes[0].get_xlim()
            powers = [power for power in range(-10, 10) if low <= 10.0**power <= high]
            self.assertGreaterEqual(len(powers), 2, points)
            self.assertLess(low, min(points))
            self.assertGreater(high, max(points))
            labels = [label.get_text() for label in figure.axes[0].get_xticklabels()]
            self.assertTrue(all("10^" in label for label in labels), labels)

    def test_figure_width_is_a_column_or_a_page(self):
        for some, width in ((panels()[:1], 3.25), (panels()[:2], 6.75), (panels(), 6.75)):
            image = matplotlib.image.imread(io.BytesIO(figures.draw(some)["png"]))
            self.assertEqual(image.shape[1], round(200 * width))

    def test_legend_fits_in_one_row(self):
        series = [Series(f"method {i}", STYLES[i], [(1e3, i, None, None)]) for i in range(5)]
        figure, renderer = drawn([Panel(name, "x", "y", series) for name in "ab"])
        (legend,) = figure.legends
        tops = {round(text.get_window_extent(renderer).y0) for text in legend.get_texts()}
        self.assertLen(tops, 1)
        box = legend.get_window_extent(renderer)
        self.assertGreaterEqual(box.x0, 0)
        self.assertLessEqual(box.x1, figure.bbox.width)

    def test_heatmaps_share_a_colour_scale(self):
        small, large = panels()[3], panels()[3]._replace(values=5 * panels()[3].values)
        figure, _ = drawn([small, large])
        images = [axes.images[0] for axes in figure.axes if axes.images]
        self.assertEqual([image.get_clim() for image in images], 2 * [(-40.0, 0.0)])
        self.assertLen(figure.axes, 3)  # Two heatmaps, one colour bar.

    def test_points_show_names(self):
        points = [(1e3, 5.0, None, None), (1e4, 7.0, None, None)]
        series = Series("a", STYLES[0], points, names=("8", "64"))
        figure, _ = drawn([Panel("one", "x", "y", [series])])
        found = {text.get_text(): text.xy for text in figure.axes[0].texts}
        self.assertEqual(found, {"8": (1e3, 5.0), "64": (1e4, 7.0)})

    def test_error_bars_span_lower_to_upper_bound(self):
        figure, _ = drawn(panels()[:1])
        bars = figure.axes[0].containers[0].lines[2][0].get_segments()
        found = [bar for bar in bars if len(bar) == 2 and np.all(np.isfinite(bar))]
        self.assertAllClose(found, [[[1e2, 4.0], [1e2, 6.0]]])

    def test_heatmap_cells_show_their_values(self):
        figure, _ = drawn(panels()[3:])
        texts = {text.get_position(): text.get_text() for text in figure.axes[0].texts}
        self.assertEqual(
            texts,
            {
                (0, 0): "0.0",
                (1, 0): "−1.0",
                (2, 0): "−2.0",
                (1, 1): "−4.0",
                (2, 1): "−5.0",
                (2, 2): "−8.0",
            },
        )

    def test_heatmap_numbers_fit_in_their_cells(self):
        values = np.where(np.tri(6, dtype=bool).T, -11.3, np.nan)
        heatmap = panels()[3]._replace(values=values)
        figure, _ = drawn([heatmap, heatmap])
        axes = figure.axes[0]
        cell = axes.get_window_extent().width / 6
        for text in axes.texts:
            self.assertLess(text.get_window_extent().width, 0.95 * cell)

    def test_heatmap_axis_labels_do_not_overlap(self):
        for size in (2, 6, 12, 24):
            heatmap = panels()[3]._replace(values=-np.ones([size, size]))
            figure, _ = drawn(3 * [heatmap])
            axes = figure.axes[0]
            columns = [text.get_window_extent() for text in axes.get_xticklabels()]
            for left, right in zip(columns, columns[1:]):
                self.assertGreater(right.x0 - left.x1, 0.3 * left.height)
            rows = [text.get_window_extent() for text in axes.get_yticklabels()]
            for upper, lower in zip(rows, rows[1:]):
                self.assertGreater(upper.y0 - lower.y1, 0)

    def test_is_linear_makes_the_x_axis_linear(self):
        line = Series("line", STYLES[0], [(1, 5.0, None, None), (60, 7.0, None, None)])
        panel = Panel("one", "trial", "accuracy (%)", [line])
        scales = []
        for linear in (False, True):
            figure, _ = drawn([panel._replace(is_linear=linear)])
            scales.append(figure.axes[0].get_xscale())
        self.assertEqual(scales, ["log", "linear"])

    def test_linear_axis_has_integer_ticks(self):
        for count in (1, 2, 3, 60):
            points = [(x, 5.0, None, None) for x in range(count)]
            series = Series("trial", STYLES[0], points)
            panel = Panel("one", "trial", "accuracy (%)", [series], is_linear=True)
            figure, _ = drawn([panel])
            ticks = figure.axes[0].get_xticks()
            self.assertAllEqual(ticks, np.round(ticks))

    def test_styles_differ_without_color(self):
        self.assertLen({style.marker for style in STYLES}, len(STYLES))
        self.assertLen({str(style.line) for style in STYLES}, len(STYLES))
