"""The shared folder of real data, checkpoints and goldens, which ADAPTER_BERT_DATA names."""

import os
import unittest

SHARED = os.environ.get("ADAPTER_BERT_DATA")
needs_shared = unittest.skipUnless(SHARED, "ADAPTER_BERT_DATA does not name the shared folder")
