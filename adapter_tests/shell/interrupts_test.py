"""Tests of interrupts.py, which send signals to the test's own process."""

import os
import signal
import threading

import tensorflow.compat.v1 as tf

from adapter_bert.shell import interrupts
from adapter_tests.support import tiny


class InterruptsTest(tf.test.TestCase):
    def setUp(self):
        super().setUp()
        self.signals = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        tiny.enable_signals(self)

    def handlers(self):
        return [signal.getsignal(number) for number in self.signals]

    def test_signals_are_handled_and_handlers_restored(self):
        came, before = [], self.handlers()
        with interrupts.handle_signals(lambda number, frame: came.append(number)):
            for number in self.signals:
                os.kill(os.getpid(), number)
        self.assertEqual(came, list(self.signals))
        self.assertEqual(self.handlers(), before)
        names = [interrupts.signal_name(number) for number in self.signals]
        self.assertEqual(names, ["Ctrl-C", "SIGTERM", "SIGHUP"])

    def test_inner_handler_replaces_outer_handler(self):
        came = []
        with interrupts.handle_signals(lambda *_: came.append("outer")):
            with interrupts.handle_signals(lambda *_: came.append("inner")):
                os.kill(os.getpid(), signal.SIGTERM)
            os.kill(os.getpid(), signal.SIGTERM)
        self.assertEqual(came, ["inner", "outer"])

    def test_postponed_signals_arrive_after_the_block(self):
        came = []
        outer = interrupts.handle_signals(lambda *_: came.append("outer"))
        with outer, interrupts.postpone_signals():
            os.kill(os.getpid(), signal.SIGTERM)
            came.append("block")
        self.assertEqual(came, ["block", "outer"])

    def test_ignored_signals_stay_ignored(self):
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        with interrupts.handle_signals(self.fail):
            os.kill(os.getpid(), signal.SIGHUP)
        self.assertIs(signal.getsignal(signal.SIGHUP), signal.SIG_IGN)

    def test_other_threads_leave_handlers_unchanged(self):
        before, found = self.handlers(), []

        def look():
            with interrupts.handle_signals(self.fail):
                found.extend(self.handlers())

        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        self.assertEqual(found, before)
