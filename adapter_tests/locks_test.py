"""Tests that `make lock` was run after the last change of the requirements."""

import os
import sys

import pytest
import tensorflow.compat.v1 as tf
from packaging import requirements, utils

PROJECT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def read_requirements(path):
    """Yields what a file, and those it includes, require on this Python."""
    with open(os.path.join(PROJECT, path)) as reader:
        lines = reader.read().replace("\\\n", "").splitlines()
    for line in (line.split(" #")[0].strip() for line in lines):
        if line.startswith("-r "):
            yield from read_requirements(line[3:])
        elif line and not line.startswith("#"):
            requirement = requirements.Requirement(line.split("--hash")[0])
            if requirement.marker is None or requirement.marker.evaluate():
                yield requirement


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="there is no TensorFlow to lock")
class LocksTest(tf.test.TestCase):
    def test_each_requirement_is_locked(self):
        names = ["requirements.txt", "requirements-dev.txt"]
        if sys.version_info >= (3, 10):  # The server needs it.
            names.append("requirements-serving.txt")
        for name in names:
            versions = {}
            for locked in read_requirements(f"locks/{name}"):
                (pin,) = locked.specifier
                self.assertNotIn(utils.canonicalize_name(locked.name), versions)
                versions[utils.canonicalize_name(locked.name)] = pin.version
            for requirement in read_requirements(name):
                version = versions[utils.canonicalize_name(requirement.name)]
                self.assertIn(version, requirement.specifier, f"{name}: {requirement}")


if __name__ == "__main__":
    tf.test.main()
