"""The house as CONTRIBUTING.md draws it: who may import whom, a test file each."""

import ast
import glob
import os
import re

import tensorflow.compat.v1 as tf

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def modules():
    return {os.path.basename(path)[:-3] for path in glob.glob(os.path.join(ROOT, "*.py"))}


def imports_of(module):
    """The project's own modules that a module imports with itself."""
    with open(os.path.join(ROOT, module + ".py"), encoding="utf-8") as reader:
        tree = ast.parse(reader.read())
    found = set()
    for node in tree.body:
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module)
    return found & modules()


def table():
    """CONTRIBUTING.md's table: rank → the cell that lists its modules."""
    with open(os.path.join(ROOT, "CONTRIBUTING.md"), encoding="utf-8") as reader:
        return dict(re.findall(r"^\| (\w+) \| (`.*) \|$", reader.read(), re.MULTILINE))


def ranks():
    """Module → its place in the table, counted from the top; in a cell, in "a → b", a imports b."""
    places = {}
    for row, cell in enumerate(table().values()):
        for group in cell.split(";"):
            for step, part in enumerate(group.split("→")):
                for module in re.findall(r"`(\w+)`", part):
                    places[module] = row + step / 10
    return places


class StructureTest(tf.test.TestCase):
    def test_every_module_has_its_place_and_imports_only_from_below(self):
        places = ranks()
        self.assertEqual(set(places), modules())
        with open(os.path.join(ROOT, "CONTRIBUTING.md"), encoding="utf-8") as reader:
            files = re.findall(r"^\| (`.*\.py`.*) \| ", reader.read(), re.MULTILINE)
        self.assertLessEqual(modules(), set(re.findall(r"`(\w+)\.py`", " ".join(files))))
        for module in sorted(modules()):
            for imported in imports_of(module):
                self.assertLess(places[module], places[imported], f"{module} → {imported}")

    def test_every_module_has_a_test_file(self):
        tests = glob.glob(os.path.join(ROOT, "adapter_tests", "*_test.py"))
        tested = {os.path.basename(path)[: -len("_test.py")] for path in tests}
        self.assertEqual(modules() - tested, set())

    def test_coverage_is_that_of_domain_and_leaves(self):
        with open(os.path.join(ROOT, "pyproject.toml"), encoding="utf-8") as reader:
            measured = re.search(r"(?s)\nsource_pkgs = \[(.*?)\]", reader.read()).group(1)
        wanted = re.findall(r"`(\w+)`", table()["domain"] + table()["leaves"])
        self.assertEqual(re.findall(r'"(\w+)"', measured), sorted(wanted))

    def test_flags_are_read_from_what_a_main_hands_on(self):
        for module in sorted(modules()):
            with open(os.path.join(ROOT, module + ".py"), encoding="utf-8") as reader:
                text = reader.read()
            self.assertNotRegex(text, r"FLAGS\.\w", module)


if __name__ == "__main__":
    tf.test.main()
