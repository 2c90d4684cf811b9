"""Test cases that write checkpoints of a tiny encoder."""

import os
import tempfile

import numpy as np
import tensorflow.compat.v1 as tf

import modeling
from adapter_bert.model import model_variables
from adapter_tests.support.refusals import RefusalTestCase

TINY = modeling.BertConfig(
    vocab_size=11,
    hidden_size=64,
    num_hidden_layers=2,
    num_attention_heads=1,
    intermediate_size=96,
    max_position_embeddings=16,
    type_vocab_size=2,
)


def changed(config, **sizes):
    return modeling.BertConfig.from_dict(dict(config.to_dict(), **sizes))


def all_tensors(checkpoint):
    """Returns a checkpoint's tensors, a dict from names to arrays; accepts a prefix or a folder."""
    reader = tf.train.load_checkpoint(checkpoint)
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def trained_tensors(checkpoint):
    """Returns the tensors of a training's checkpoint, without Adam's slots, step and identity."""
    tensors = all_tensors(checkpoint)
    others = ("/adam_m", "/adam_v", "global_step", "_RUN_IDENTITY")
    return {name: tensors[name] for name in tensors if not name.endswith(others)}


class CheckpointTestCase(RefusalTestCase):
    """Writes checkpoints into a folder of the test."""

    def setUp(self):
        super().setUp()
        self.folder = tempfile.mkdtemp(dir=self.get_temp_dir())
        self.prefix = os.path.join(self.folder, "bert_model.ckpt")

    def save(self, tensors, prefix=None, **saver_options):
        """Writes a checkpoint with tf.train.Saver and returns its prefix."""
        prefix = prefix or self.prefix
        with tf.Graph().as_default(), tf.Session() as session:
            variables = {
                name: tf.get_variable(f"v{index}", initializer=value, use_resource=False)
                for index, (name, value) in enumerate(tensors.items())
            }
            session.run(tf.global_variables_initializer())
            saver = tf.train.Saver(variables, **saver_options)
            saver.save(session, prefix, write_meta_graph=False, write_state=False)
        return prefix

    def save_encoder(self, config, **others):
        shapes = model_variables.encoder_shapes(config)
        return self.save(
            dict({name: np.zeros(shape, np.float32) for name, shape in shapes.items()}, **others)
        )
