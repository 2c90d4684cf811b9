"""Tasks of every kind on a tiny BERT, for tests of serving."""

import functools
import os
import tempfile

import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.formats import task_adapter
from adapter_bert.serving.http import admission, registry, served_tasks, task_folders
from adapter_bert.serving.inference import bank, request_texts
from adapter_tests.support import own_models, tiny

TASKS = {
    "sms": {"labels": ("ham", "spam")},
    "topics": {"labels": ("a", "b", "c"), "adapter": modeling.AdapterConfig(2)},
    "stars": {"kind": "regression", "labels": ()},
    "sets": {"kind": "multilabel", "labels": ("x", "y")},
    "squad": {"kind": "span", "labels": (), "training": {"doc_stride": 3, "max_query_length": 4}},
}
VERSION = 1000  # When the folders of `save_all` were written, in Unix seconds.


@functools.lru_cache(maxsize=None)
def prepare():
    """Returns (folder of a BERT, task adapters by the names in `TASKS`)."""
    root = tempfile.mkdtemp(dir=tf.test.get_temp_dir())
    bert = tiny.write_bert(os.path.join(root, "bert"), initializer_range=0.4)
    adapters = {
        name: own_models.build_task_adapter(bert, seed, **{"task": name, **changes})
        for seed, (name, changes) in enumerate(TASKS.items())
    }
    return bert, adapters


def other(name, seed=100):
    """Returns a task adapter with the labels of one of `TASKS` and different weights."""
    return own_models.build_task_adapter(prepare()[0], seed, **{"task": name, **TASKS[name]})


def make_bank(**options):
    """Returns an empty `bank.AdapterBank`."""
    prefix = os.path.join(prepare()[0], "bert_model.ckpt")
    return bank.AdapterBank(tiny.config(), prefix, **options)


def save_all(root, names=tuple(TASKS)):
    """Saves task adapters of version `VERSION` as `<root>/<name>/adapter`; returns root."""
    for name in names:
        folder = os.path.join(root, name, "adapter")
        task_adapter.save(folder, prepare()[1][name])
        os.utime(os.path.join(folder, task_adapter.CONFIG_FILE), (VERSION, VERSION))
    return root


def tasks_of(some_bank, root=None, **options):
    """Returns a `registry.Registry` on a bank, with all tasks below root."""
    tokenizers = request_texts.Tokenizers(os.path.join(prepare()[0], "vocab.txt"))
    reading = request_texts.TextEncoding(tiny.config(), tokenizers, 1000)
    folders = task_folders.TaskFolders(root, **options)
    tasks = registry.Registry(folders, served_tasks.ServedTasks(some_bank, reading))
    if root:
        tasks.start()
        tasks.update()
    return tasks


class ServedTestCase(tf.test.TestCase):
    """Serves the tasks of `NAMES` from `root`, a folder of each test, on one bank for all tests."""

    NAMES = tuple(TASKS)

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.bank = make_bank()
        cls.addClassCleanup(cls.bank.close)

    def setUp(self):
        super().setUp()
        self.root = save_all(tempfile.mkdtemp(dir=self.get_temp_dir()), self.NAMES)
        self.tasks = tasks_of(self.bank, self.root)
        self.addCleanup(self.empty)

    def empty(self):
        self.tasks.close()
        for name in self.bank.names():
            self.bank.remove(name)

    def api(self, bank=None, *options, **limits):
        """Returns a `rest_api.RestApi` of the tasks; options are its arguments after limits."""
        from adapter_bert.serving.http import rest_api  # Its packages are only for servers.

        limits = admission.RequestLimits(**limits)
        api = rest_api.RestApi(self.tasks, bank or self.bank, limits, *options)
        self.addCleanup(api.close)
        return api
