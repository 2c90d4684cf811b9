"""Arrays that are made once and kept under a key of everything that they depend on."""

import hashlib
import io
import os
import posixpath
import zipfile

import numpy as np
import tensorflow.compat.v1 as tf
from absl import logging

import files
from errors import UserError


def default_folder():
    """Where arrays are kept unless someone says otherwise: the user's folder for caches."""
    home = os.environ.get("XDG_CACHE_HOME") or os.path.join(os.path.expanduser("~"), ".cache")
    return os.path.join(home, "adapter-bert", "features")


def key_of(parts, modules):
    """A name for what arrays depend on.

    Args:
      parts: iterable of str, numbers, None and tuples of them.
      modules: list of the modules whose code makes the arrays.
    """
    sha256 = hashlib.sha256()
    for module in modules:
        with open(module.__file__, "rb") as reader:
            sha256.update(reader.read())
    for part in parts:
        sha256.update(repr(part).encode("utf-8", "surrogatepass"))
    return sha256.hexdigest()


def cached(folder, key, make):
    """The arrays of a key: read if they are there, else made and written whole.

    A file that is damaged is made anew. A folder that cannot be written costs the cache, not the
    run; both are logged.

    Args:
      folder: path.
      key: str, see `key_of`.
      make: function without arguments that returns a dict of arrays.
    """
    path = posixpath.join(folder, key + ".npz")
    if tf.io.gfile.exists(path):
        try:
            with tf.io.gfile.GFile(path, "rb") as reader:
                arrays = np.load(io.BytesIO(reader.read()), allow_pickle=False)
            return {name: arrays[name] for name in arrays.files}
        except (tf.errors.OpError, EOFError, OSError, ValueError, zipfile.BadZipFile) as error:
            logging.warning("%s is damaged (%s), and is made anew.", path, error)
    arrays = make()
    try:
        with files.written(path):
            _write(path, arrays)
    except UserError as error:
        logging.warning("Features are not kept: %s", error)
    return arrays


def _write(path, arrays):
    content, partial = io.BytesIO(), f"{path}.{os.getpid()}"  # Other runs may write the same.
    np.savez(content, **arrays)
    tf.io.gfile.makedirs(posixpath.dirname(path))
    with tf.io.gfile.GFile(partial, "wb") as writer:
        writer.write(content.getvalue())
    tf.io.gfile.rename(partial, path, overwrite=True)
