"""Tests of batcher.py: which rows share a batch, which rows wait, and which rows fail."""

import queue
import threading
from concurrent import futures

import pytest
from absl.testing import parameterized

pytest.importorskip("uvicorn", reason="requirements-serving.txt is not installed")

# isort: split
from adapter_bert.serving.inference import batcher
from adapter_bert.serving.inference.batcher import Batcher, Closed
from adapter_bert.shell.errors import UserError


class _DoublingWorker:
    """A `predict` of numbers that returns each batch once it is released; 13 and 113 are errors."""

    def __init__(self):
        self.begun, self.go = queue.Queue(), queue.Queue()

    def __call__(self, rows):
        self.begun.put(rows)
        self.go.get(timeout=10)
        for row in rows:
            if row % 100 == 13:
                raise ValueError(f"row {row}")
        return [row * 2 for row in rows]

    def release(self, batches=1):
        for _ in range(batches):
            self.go.put(None)


class BatchingTest(parameterized.TestCase):
    def batcher(self, predict, max_batch_size=4, **options):
        row_batcher = Batcher(predict, lambda row: row, max_batch_size=max_batch_size, **options)
        self.addCleanup(row_batcher.close)
        return row_batcher

    def busy(self, row=1, **options):
        """Returns (a batcher that is computing that row, its worker, the row's future)."""
        worker = _DoublingWorker()
        row_batcher = self.batcher(worker, **options)
        self.addCleanup(worker.release, 100)
        first = row_batcher.submit([row])
        self.assertEqual(worker.begun.get(timeout=10), [row])
        return row_batcher, worker, first

    def test_lone_row_is_computed_at_once(self):
        row_batcher = self.batcher(lambda rows: [row + 1 for row in rows])
        self.assertEqual(row_batcher.submit([5]).result(10), [6])
        self.assertEqual(len(row_batcher), 0)

    def test_waiting_rows_are_batched_by_length_oldest_first(self):
        sizes = []
        row_batcher, worker, first = self.busy(observers=[lambda size, seconds: sizes.append(size)])
        found = [row_batcher.submit(rows) for rows in ([200, 3], [4, 201], [5, 6, 7], [300])]
        self.assertEqual(len(row_batcher), 8)
        worker.release(6)
        self.assertEqual(first.result(10), [2])
        self.assertEqual(
            [future.result(10) for future in found], [[400, 6], [8, 402], [10, 12, 14], [600]]
        )
        batches = [worker.begun.get(timeout=10) for _ in range(4)]
        self.assertEqual(batches, [[200, 201], [3, 4, 5, 6], [7], [300]])
        row_batcher.close()
        self.assertEqual(sizes, [1, 2, 4, 1, 1])

    def test_batches_do_not_exceed_max_batch_size(self):
        row_batcher, worker, _ = self.busy(max_batch_size=9)
        found = row_batcher.submit([20] * 15)
        worker.release(6)
        self.assertEqual(found.result(10), [40] * 15)
        self.assertEqual([len(worker.begun.get(timeout=10)) for _ in range(2)], [9, 6])

    @parameterized.parameters(
        ([100], 0, [(0, 1)]),
        ([10, 90, 100, 101, 300], 2, [(2, 3), (2, 4), (1, 4)]),
        ([36, 100], 1, [(1, 2), (0, 2)]),
        ([35, 100], 1, [(1, 2)]),
        ([100, 164], 0, [(0, 1), (0, 2)]),
        ([100, 165], 0, [(0, 1)]),
        ([100, 100, 100, 100, 125], 0, [(0, 1), (0, 2), (0, 3), (0, 4), (0, 5)]),
        ([300] * 9, 8, [(8, 9), (7, 9), (6, 9)]),  # At most 1024 tokens.
        ([100, 100, 100, 100, 126], 0, [(0, 1), (0, 2), (0, 3), (0, 4)]),
    )
    def test_windows_limit_padding_and_tokens(self, lengths, place, expected):
        # A batch of 100 tokens may have 64 tokens of padding; of a batch of 400, a quarter may be.
        self.assertEqual(list(batcher._windows(lengths, place)), expected)

    def test_error_affects_only_its_own_row(self):
        row_batcher, worker, _ = self.busy()
        good, bad, also_good = (row_batcher.submit(rows) for rows in ([2], [3, 13], [4]))
        worker.release(100)
        self.assertEqual(good.result(10), [4])
        self.assertEqual(also_good.result(10), [8])
        six, error = bad.result(10)
        self.assertEqual(six, 6)
        self.assertIsInstance(error, ValueError)
        self.assertEqual(str(error), "row 13")
        self.assertEqual(row_batcher.submit([9]).result(10), [18])

    def test_returned_errors_are_logged_and_not_recomputed(self):
        calls = []

        def predict(rows):
            calls.append(rows)
            return [UserError("bad") if row == 13 else row for row in rows]

        row_batcher = batcher.Batcher(predict, lambda row: 1, max_batch_size=4)
        self.addCleanup(row_batcher.close)
        with self.assertLogs("absl", "WARNING") as logs:
            outputs = row_batcher.submit([1, 13, 2]).result(10)
        self.assertEqual((outputs[0], str(outputs[1]), outputs[2]), (1, "bad", 2))
        self.assertEqual(calls, [[1, 13, 2]])
        self.assertIn("A row failed: bad", logs.output[0])

    def test_rows_with_lower_priority_values_go_first(self):
        row_batcher, worker, _ = self.busy(max_batch_size=1)
        for row, priority in ((2, 5.0), (3, 5.0), (200, 7.0), (4, 1.0)):
            row_batcher.submit([row], priority)
        worker.release(5)
        row_batcher.close()
        self.assertEqual(list(worker.begun.queue), [[4], [2], [3], [200]])

    def test_cancelled_rows_are_not_computed(self):
        row_batcher, worker, _ = self.busy()
        dropped, kept = row_batcher.submit([2, 200]), row_batcher.submit([3])
        self.assertTrue(dropped.cancel())
        worker.release(100)
        self.assertEqual(kept.result(10), [6])
        row_batcher.close()
        self.assertEqual(list(worker.begun.queue), [[3]])

    def test_cancelling_a_running_call_does_not_stop_batcher(self):
        for row in (1, 13):
            row_batcher, worker, first = self.busy(row)
            first.cancel()
            worker.release(2)
            self.assertEqual(row_batcher.submit([2]).result(10), [4])

    def test_close_computes_queued_rows_and_refuses_new_rows(self):
        row_batcher, worker, first = self.busy()
        waiting = row_batcher.submit([2])
        ending = threading.Thread(target=row_batcher.close)
        ending.start()
        worker.release(2)
        ending.join(10)
        self.assertEqual((first.result(0), waiting.result(0)), ([2], [4]))
        self.assertFalse(row_batcher.is_open)
        with self.assertRaises(Closed):
            row_batcher.submit([3])

    def test_small_calls_are_computed_beside_a_large_one(self):
        worker = _DoublingWorker()
        lanes = batcher.Lanes(worker, lambda row: row, max_batch_size=4)
        self.addCleanup(lanes.close)
        self.addCleanup(worker.release, 100)
        large = lanes.submit([1] * 9)
        self.assertEqual(worker.begun.get(timeout=10), [1] * 4)
        small = lanes.submit([2] * 8, priority=9.0)
        self.assertEqual(worker.begun.get(timeout=10), [2] * 4)  # At the same time.
        self.assertEqual(len(lanes), 5 + 4)
        worker.release(100)
        self.assertEqual((small.result(10), large.result(10)), ([4] * 8, [2] * 9))
        lanes.close()
        self.assertFalse(lanes.is_open)
        for rows in ([1], [1] * 9):
            with self.assertRaises(Closed):
                lanes.submit(rows)

    def test_concurrent_threads_get_results_of_their_rows(self):
        row_batcher = self.batcher(lambda rows: [-row for row in rows])

        def ask(start):
            rows = list(range(start, start + 300, 7))
            return all(
                row_batcher.submit(rows).result(10) == [-row for row in rows] for _ in range(20)
            )

        with futures.ThreadPoolExecutor(8) as pool:
            self.assertEqual(list(pool.map(ask, range(0, 800, 100))), [True] * 8)
