"""Tests of admission.py: the order of requests, refusals, and how texts share the threads."""

import asyncio
import contextlib
import threading
from concurrent import futures

import pytest
import tensorflow.compat.v1 as tf

pytest.importorskip("uvicorn", reason="requirements-serving.txt is not installed")

# isort: split
from adapter_bert.serving.http import admission


class QueueTest(tf.test.TestCase):
    def run_in_loop(self, function, max_rows=10, max_seconds=30.0):
        """Calls a function of (queue, stack of contexts) in an event loop."""

        async def main():
            with contextlib.ExitStack() as stack:
                function(admission.Queue(max_rows, max_seconds), stack)

        asyncio.run(main())

    def test_short_requests_overtake_a_long_one_until_it_is_due(self):
        def check(queue, stack):
            long = stack.enter_context(queue.enter("a", 20000))
            num_before = 0
            while True:
                with queue.enter("b", 100) as short:
                    if short.tag > long.tag:
                        break
                num_before += 1
            self.assertEqual(num_before, 22000 // 2100)

        self.run_in_loop(check)

    def test_requests_of_one_client_share_its_turns(self):
        def check(queue, stack):
            tags = [stack.enter_context(queue.enter("a", 1000)).tag for _ in range(4)]
            other = stack.enter_context(queue.enter("b", 1000)).tag
            self.assertEqual(tags, [3000.0, 6000.0, 9000.0, 12000.0])
            self.assertEqual(other, 3000.0)
            undeclared = stack.enter_context(queue.enter("b", 0))
            queue.grow(undeclared, 500)
            queue.grow(undeclared, 1000)
            self.assertEqual((undeclared.tag, undeclared.rows), (6000.0, 1))
            with self.assertRaises(admission.Overloaded):
                queue.grow(undeclared, 8192 * 6)

        self.run_in_loop(check)

    def test_full_queue_refuses_the_highest_tag(self):
        def check(queue, stack):
            first, second = (stack.enter_context(queue.enter("a", 8192 * 4)) for _ in range(2))
            self.assertEqual(len(queue), 10)
            small = stack.enter_context(queue.enter("b", 10))
            self.assertEqual([t.refused.done() for t in (first, second, small)], [0, 1, 0])
            with self.assertRaises(admission.Overloaded):
                stack.enter_context(queue.enter("b", 8192 * 9))
            self.assertEqual(len(queue), 6)
            with self.assertRaises(admission.Overloaded):
                queue.resize(first, 20)  # Its texts have more rows than estimated.
            self.assertEqual(len(queue), 1)
            queue.resize(small, 11)  # A lone request may exceed the limit.

        self.run_in_loop(check)

    def test_slow_rows_reduce_the_queue_limit(self):
        def check(queue, stack):
            large = stack.enter_context(queue.enter("a", 8192 * 20))
            queue.count_batch(True, 1, 10.0)
            queue.count_batch(False, 10, 5.0)
            small = stack.enter_context(queue.enter("a", 0))
            queue.count_reading(small, 1.0)  # 0.6 seconds per row: 50 rows take 30 seconds.
            queue.count_reading(large, 9.0)
            rows = 1
            with self.assertRaises(admission.Overloaded):
                while True:
                    stack.enter_context(queue.enter("a", 0))
                    rows += 1
            self.assertBetween(rows, 48, 50)
            self.assertFalse(large.refused.done())  # The small ones do not count for it.
            stack.enter_context(queue.enter("b", 8192 * 8))
            self.assertTrue(large.refused.done())

        self.run_in_loop(check, max_rows=1000)

    def test_old_speed_measurements_lose_their_weight(self):
        def check(queue, stack):
            queue.count_batch(False, 1, 30.0)
            for _ in range(100):
                queue.count_batch(False, 100, 1.0)
            for _ in range(1000):
                stack.enter_context(queue.enter("a", 0))
            self.assertEqual(len(queue), 1000)

        self.run_in_loop(check, max_rows=1000)

    def test_finished_and_failed_requests_leave_the_queue(self):
        def check(queue, stack):
            for error in (None, ValueError):
                with contextlib.suppress(ValueError), queue.enter("a", 0):
                    if error:
                        raise error
            self.assertEqual((len(queue), dict(queue._requests_of)), (0, {}))
            # A failed request does not advance the virtual time.
            self.assertEqual(queue._virtual_time, 2000.0)

        self.run_in_loop(check)


class ReadersTest(tf.test.TestCase):
    def readers(self, num_threads=1):
        self.counted = []
        readers = admission.Readers(num_threads)
        self.addCleanup(readers.close)
        return lambda tag, work: readers.submit(tag, work, self.counted.append), readers

    def test_lower_tag_runs_first_between_steps(self):
        (submit, readers), done = self.readers(), []
        begun, go = threading.Event(), threading.Event()

        def work(name, num_steps):
            for _ in range(num_steps):
                done.append(name)
                if len(done) == 1:
                    begun.set()
                    go.wait(10)
                yield
            return name

        found = [submit(5.0, work("long", 3))]
        self.assertTrue(begun.wait(10))
        for tag, name in ((7.0, "late"), (1.0, "short"), (5.0, "as long")):
            found.append(submit(tag, work(name, 1)))
        go.set()
        self.assertEqual([f.result(10) for f in found], ["long", "late", "short", "as long"])
        self.assertEqual(done, ["long", "short", "long", "long", "as long", "late"])
        readers.close()
        self.assertLen(self.counted, 4)

    def test_work_that_waits_for_a_future_blocks_no_other_work(self):
        (submit, _), awaited = self.readers(), futures.Future()

        def waiting():
            yield awaited
            return awaited.result()

        def other():
            yield
            return "other"

        found = [submit(tag, work) for tag, work in ((1.0, waiting()), (2.0, other()))]
        self.assertEqual(found[1].result(10), "other")
        self.assertFalse(found[0].done())
        awaited.set_result("read")
        self.assertEqual(found[0].result(10), "read")

    def test_failed_and_cancelled_work_does_not_affect_other_work(self):
        (submit, readers), done = self.readers(), []
        begun, go = threading.Event(), threading.Event()

        def broken():
            yield
            raise ValueError("odd")

        def endless():
            while True:
                begun.set()
                go.wait(10)
                yield

        def fine():
            yield
            done.append(1)

        running = submit(0.0, endless())
        self.assertTrue(begun.wait(10))
        failed, good = submit(1.0, broken()), submit(2.0, fine())
        running.cancel()
        go.set()
        self.assertRaisesRegex(ValueError, "odd", failed.result, 10)
        self.assertIsNone(good.result(10))
        self.assertEqual(done, [1])
        readers.close()
        self.assertLen(self.counted, 1)  # Of the work that returned a value.
