"""The house as CONTRIBUTING.md draws it: who may import whom, and a test file for every module."""

import ast
import glob
import os
import re

import tensorflow.compat.v1 as tf

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def modules():
    return {os.path.basename(path)[:-3] for path in glob.glob(os.path.join(ROOT, "*.py"))}


def imports_of(module):
    """The project's own modules that a module imports."""
    with open(os.path.join(ROOT, module + ".py"), encoding="utf-8") as reader:
        tree = ast.parse(reader.read())
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return found & modules()


def ranks():
    """Module → its place in CONTRIBUTING.md's table, counted from the top.

    A cell lists modules of one rank; "a → b" in it means that a may import b.
    """
    with open(os.path.join(ROOT, "CONTRIBUTING.md"), encoding="utf-8") as reader:
        cells = re.findall(r"^\| \w+ \| (`.*) \|$", reader.read(), re.MULTILINE)
    places = {}
    for row, cell in enumerate(cells):
        for group in cell.split(";"):
            for step, part in enumerate(group.split("→")):
                for module in re.findall(r"`(\w+)`", part):
                    places[module] = row + step / 10
    return places


class StructureTest(tf.test.TestCase):
    def test_every_module_has_its_place_and_imports_only_from_below(self):
        places = ranks()
        self.assertEqual(set(places), modules())
        for module in sorted(modules()):
            for imported in imports_of(module):
                self.assertLess(places[module], places[imported], f"{module} → {imported}")

    def test_every_module_has_a_test_file(self):
        tests = glob.glob(os.path.join(ROOT, "adapter_tests", "*_test.py"))
        tested = {os.path.basename(path)[: -len("_test.py")] for path in tests}
        self.assertEqual(modules() - tested, set())

    def test_only_mains_read_flags(self):
        for module in sorted(modules()):
            with open(os.path.join(ROOT, module + ".py"), encoding="utf-8") as reader:
                text = reader.read()
            if not module.startswith("run_") and module != "errors":
                self.assertNotRegex(text, r"FLAGS\.\w", module)


if __name__ == "__main__":
    tf.test.main()
