"""The order of the packages: each imports only from those before it."""

import os
import runpy
import sys
from unittest import mock

import tensorflow.compat.v1 as tf

FIGURES = os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs/figures")
# Packages of one line do not import each other.
ORDER = [
    {"common"},
    {"tokenization", "ops"},
    {"modeling"},
    {"tuning"},
    {"optimization", "formats"},
    {"training"},
    {"tasks"},
    {"serving", "baseline"},
    {"experiments"},
    {"scripts"},
]


class StructureTest(tf.test.TestCase):
    def test_imports_point_downwards(self):
        with mock.patch.object(sys, "path", [FIGURES, *sys.path]):
            script = runpy.run_path(os.path.join(FIGURES, "architecture.py"))
        ranks = {name: rank for rank, names in enumerate(ORDER) for name in names}
        arrows = script["arrows"]()
        self.assertEqual({package for pair in arrows for package in pair}, set(ranks))
        for (package, imported), path in arrows.items():
            self.assertLess(ranks[imported], ranks[package], f"{path} imports {imported}")


if __name__ == "__main__":
    tf.test.main()
