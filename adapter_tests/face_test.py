"""Tests that BERT's public functions are what the scripts run.

A `raise` in any function of `FACE` must end the script of that purpose. Otherwise somebody who
edits the function, as in BERT's repository, would change nothing, in silence.
"""

import contextlib
import importlib
import inspect
import io
import os
import tempfile
from unittest import mock

import pytest
import tensorflow.compat.v1 as tf
from absl import flags

from adapter_tests.support import command_lines, tiny

# Script → the public names of google-research/bert and google-research/adapter-bert that it runs. A
# class stands for its constructor.
FACE = {
    "run_classifier": """
        modeling.BertConfig
        modeling.BertConfig.from_dict
        modeling.BertConfig.from_json_file
        modeling.BertConfig.to_dict
        modeling.BertConfig.to_json_string
        modeling.BertModel
        modeling.BertModel.get_pooled_output
        modeling.gelu
        modeling.get_activation
        modeling.get_assignment_map_from_checkpoint
        modeling.dropout
        modeling.layer_norm
        modeling.layer_norm_and_dropout
        modeling.create_initializer
        modeling.embedding_lookup
        modeling.embedding_postprocessor
        modeling.create_attention_mask_from_input_mask
        modeling.attention_layer
        modeling.transformer_model
        modeling.get_shape_list
        modeling.reshape_to_matrix
        modeling.reshape_from_matrix
        modeling.assert_rank
        modeling.feedforward_adapter
        modeling.get_adapter
        optimization.create_optimizer
        optimization.AdamWeightDecayOptimizer
        optimization.AdamWeightDecayOptimizer.apply_gradients
        optimization.AdamWeightDecayOptimizer._do_use_weight_decay
        run_classifier.InputExample
        run_classifier.PaddingInputExample
        run_classifier.InputFeatures
        run_classifier.DataProcessor.get_train_examples
        run_classifier.DataProcessor.get_dev_examples
        run_classifier.DataProcessor.get_test_examples
        run_classifier.DataProcessor.get_labels
        run_classifier.DataProcessor._read_tsv
        run_classifier.MrpcProcessor
        run_classifier.MrpcProcessor.get_train_examples
        run_classifier.MrpcProcessor.get_dev_examples
        run_classifier.MrpcProcessor.get_test_examples
        run_classifier.MrpcProcessor.get_labels
        run_classifier.convert_single_example
        run_classifier.convert_examples_to_features
        run_classifier.file_based_convert_examples_to_features
        run_classifier.file_based_input_fn_builder
        run_classifier.input_fn_builder
        run_classifier.create_model
        run_classifier.model_fn_builder
        run_classifier.main
        tokenization.validate_case_matches_checkpoint
        tokenization.convert_to_unicode
        tokenization.printable_text
        tokenization.load_vocab
        tokenization.convert_by_vocab
        tokenization.convert_tokens_to_ids
        tokenization.whitespace_tokenize
        tokenization.FullTokenizer
        tokenization.FullTokenizer.tokenize
        tokenization.FullTokenizer.convert_tokens_to_ids
        tokenization.BasicTokenizer
        tokenization.BasicTokenizer.tokenize
        tokenization.WordpieceTokenizer
        tokenization.WordpieceTokenizer.tokenize
    """,
    "run_squad": """
        modeling.BertModel.get_sequence_output
        run_squad.SquadExample
        run_squad.InputFeatures
        run_squad.read_squad_examples
        run_squad.convert_examples_to_features
        run_squad.create_model
        run_squad.model_fn_builder
        run_squad.RawResult
        run_squad.write_predictions
        run_squad.get_final_text
        run_squad.main
        tokenization.BasicTokenizer
    """,
    "extract_features": """
        modeling.BertModel.get_all_encoder_layers
        modeling.BertModel.get_embedding_output
        modeling.BertModel.get_embedding_table
        extract_features.InputExample
        extract_features.InputFeatures
        extract_features.read_examples
        extract_features.convert_examples_to_features
        extract_features.input_fn_builder
        extract_features.model_fn_builder
        extract_features.main
        tokenization.FullTokenizer.convert_ids_to_tokens
        tokenization.convert_ids_to_tokens
    """,
}

# The names of `FACE` that no script runs → (the reason, the test that pins what they return). They
# are for programs that import BERT's modules.
_UNUSED = "BERT's scripts do not run it either"
_ABSTRACT = "each processor overrides it, as in BERT"
_FILES = "features are cached in another format; see adapter_bert/tasks/text/record_files.py"
EXCEPTIONS = {
    "modeling.BertConfig.to_json_string": (
        _UNUSED,
        "modeling_test.test_to_json_string_writes_a_config_that_is_read_again",
    ),
    "modeling.BertModel.get_embedding_output": (
        "only BERT's pretraining runs it",
        "modeling_test.test_embedding_output_is_normalized_sum_of_embeddings",
    ),
    "modeling.BertModel.get_embedding_table": (
        "only BERT's pretraining runs it",
        "modeling_test.test_embedding_output_is_normalized_sum_of_embeddings",
    ),
    "run_classifier.DataProcessor._read_tsv": (
        "it is a view of table_readers.read_lines and split_tabs, which run",
        "run_classifier_test.test_custom_processor_trains_evaluates_and_predicts",
    ),
    "run_classifier.PaddingInputExample": (
        "batches are padded as arrays",
        "run_classifier_test.test_custom_processor_trains_evaluates_and_predicts",
    ),
    "run_classifier.file_based_convert_examples_to_features": (
        _FILES,
        "tasks/text/record_files_test.test_batches_equal_those_of_the_script",
    ),
    "run_classifier.file_based_input_fn_builder": (
        _FILES,
        "tasks/text/record_files_test.test_batches_equal_those_of_the_script",
    ),
    "tokenization.FullTokenizer.convert_ids_to_tokens": (
        _UNUSED,
        "tokenization_test.test_text_is_converted_to_ids_and_back",
    ),
    "tokenization.convert_ids_to_tokens": (
        _UNUSED,
        "tokenization_test.test_tokens_and_ids_are_converted_both_ways",
    ),
    "tokenization.printable_text": (
        "the scripts print no examples",
        "tokenization_test.test_str_and_bytes_are_converted_to_str",
    ),
    **{
        f"run_classifier.DataProcessor.{name}": (
            _ABSTRACT,
            "tasks/text/glue_test.test_base_class_methods_raise_not_implemented_error",
        )
        for name in ("get_train_examples", "get_dev_examples", "get_test_examples", "get_labels")
    },
}


class Raised(Exception):
    """The error that `broken` functions raise."""


@contextlib.contextmanager
def broken(name):
    """Makes a function or constructor raise `Raised` while entered, wherever it is imported.

    Args:
      name: module.function, module.class or module.class.method.
    """
    module, *path = name.split(".")
    found = importlib.import_module(module)
    for part in path:
        found = getattr(found, part)
    if inspect.isclass(found):
        constructor = "__new__" if issubclass(found, tuple) else "__init__"  # Of a NamedTuple.
        with mock.patch.object(found, constructor, side_effect=Raised(name)):
            yield
        return
    function = inspect.unwrap(getattr(found, "__func__", found))
    original = function.__code__
    function.__code__ = _raising_code(name, len(original.co_freevars))
    try:
        yield
    finally:
        function.__code__ = original


def _raising_code(name, num_variables):
    """Returns the code of a function that raises `Raised`, with that number of free variables."""
    variables = [f"v{index}" for index in range(num_variables)]
    lines = ["def enclose():", *(f"    {variable} = None" for variable in variables)]
    lines += ["    def function(*args, **kwargs):", *(f"        {v}" for v in variables)]
    lines += [f"        raise __import__('sys').modules[{__name__!r}].Raised({name!r})"]
    lines += ["    return function"]
    namespace = {}
    exec("\n".join(lines), namespace)
    return namespace["enclose"]().__code__


@pytest.mark.without_xla
class FaceTest(tf.test.TestCase):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.root = tempfile.mkdtemp(dir=tf.test.get_temp_dir())
        bert = tiny.write_bert(os.path.join(cls.root, "bert"))
        squad = tiny.write_squad(os.path.join(cls.root, "squad.json"), 4)
        texts = os.path.join(cls.root, "input.txt")
        with open(texts, "w") as writer:
            writer.write("the dog sees a cat\nbig ||| old\n")
        training = ["--do_train", "--do_eval", "--do_predict", "--train_batch_size=4"]
        training += ["--num_train_epochs=1", "--precision=float32", "--feature_cache_dir=none"]
        own_flags = {
            "run_classifier": [
                *training,
                "--task_name=mrpc",
                "--data_dir=" + tiny.write_mrpc(os.path.join(cls.root, "data"), rows=4),
            ],
            "run_squad": [
                *training,
                "--train_file=" + squad,
                "--predict_file=" + squad,
                "--max_query_length=3",
                "--doc_stride=4",
            ],
            "extract_features": ["--input_file=" + texts, "--layers=-1"],
        }
        cls.flags = {
            script: [
                "--bert_config_file=" + os.path.join(bert, "bert_config.json"),
                "--vocab_file=" + os.path.join(bert, "vocab.txt"),
                "--init_checkpoint=" + os.path.join(bert, "bert_model.ckpt"),
                "--max_seq_length=16",
                *own,
            ]
            for script, own in own_flags.items()
        }

    def run_script(self, script):
        """Runs a script as its command line does, but in this process."""
        module, folder = importlib.import_module(script), tempfile.mkdtemp(dir=self.root)
        output = "output_file" if script == "extract_features" else "output_dir"
        values = command_lines.parsed(
            module.define_flags, *self.flags[script], f"--{output}={folder}/output"
        )
        with mock.patch.object(flags, "FLAGS", values), contextlib.redirect_stdout(io.StringIO()):
            module.main([script])

    def test_a_raise_in_a_function_of_berts_ends_the_script_of_its_purpose(self):
        for script, names in FACE.items():
            for name in names.split():
                if name not in EXCEPTIONS:
                    case = self.subTest(script=script, name=name)
                    with case, broken(name), self.assertRaisesRegex(Raised, f"^{name}$"):
                        self.run_script(script)

    def test_exceptions_have_tests(self):
        folder = os.path.dirname(os.path.abspath(__file__))
        for name, (_, test) in EXCEPTIONS.items():
            path, _, function = test.rpartition(".")
            with self.subTest(name=name), open(os.path.join(folder, path + ".py")) as reader:
                content = reader.read()
                self.assertIn(f"def {function}(", content)
                self.assertIn(name.split(".")[-1], content)

    def test_exceptions_do_not_run(self):
        with contextlib.ExitStack() as stack:
            for name in EXCEPTIONS:
                stack.enter_context(broken(name))
            for script in FACE:
                with self.subTest(script=script):
                    self.run_script(script)
