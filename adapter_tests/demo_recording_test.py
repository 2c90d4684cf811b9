"""Tests of docs/figures/demo.py: the animation that it draws of a recording."""

import os
import runpy
from xml.etree import ElementTree

import tensorflow.compat.v1 as tf

from adapter_bert.common import paths

DEMO = runpy.run_path(os.path.join(paths.PROJECT, "docs", "figures", "demo.py"))
LINES = [(0.1, "step 1/2 <1.0>"), (60.0, "x" * 120), (60.1, "")]


class DemoRecordingTest(tf.test.TestCase):
    def test_waits_are_shortened_and_long_lines_wrapped(self):
        shown = DEMO["screen_lines"]("make demo", LINES)
        times, texts = zip(*shown)
        self.assertEqual(texts[:2], ("$ make demo", "step 1/2 <1.0>"))
        self.assertEqual("".join(texts[2:4]).replace(" ", ""), "x" * 120)
        self.assertEqual(texts[4], "")
        self.assertEqual(list(times), sorted(times))
        self.assertLess(times[-1], 3.0)

    def test_the_picture(self):
        lines = [(0.5 * i, f"line {i} & more") for i in range(150)]
        picture = DEMO["svg"]("make demo", lines, 75.0)
        self.assertLess(len(picture), 60_000)
        self.assertIn("recorded in 1:15", picture)
        root = ElementTree.fromstring(picture)
        texts = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
        self.assertEqual(texts[-1], "line 149 & more")
        self.assertNotRegex(picture, "<script|https?://(?!www.w3.org/2000/svg)")
        # Without animation, the last screen is visible.
        self.assertIn("prefers-reduced-motion:reduce){*{animation:none", picture)
        hidden = 18 * (len(lines) + 1 - DEMO["ROWS"])
        self.assertIn(f".lines{{transform:translateY(-{hidden}px)", picture)
