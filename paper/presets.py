"""The paper's grids of settings: Houlsby et al. 2019, sections 3.2 to 3.6 and the appendix.

Where the paper gives no value, the presets have:

- Table 1: for full fine-tuning, the learning rates and epochs of Devlin et al. 2018.
- Table 2: five seeds; for variable fine-tuning, the epochs of full fine-tuning.
- Figures 1 and 3, left: three seeds; for adapters, the sizes of section 3.2.
- Figure 4: 3 and 20 epochs.
- Figure 5: the sizes and layers of Figure 4.
- Figure 6, right: the powers of ten in the paper's interval, size 64, three seeds; the learning
  rates and epochs of section 3.2.
- Figure 7: MNLI and CoLA, six learning rates in the paper's range; the sizes and epochs of
  section 3.2.
- The variants of section 3.6: MNLI and CoLA, size 64, three seeds, the learning rates and epochs of
  section 3.2; two and three layers. The paper names no activation but tanh, nor adapters after the
  feed-forward layer alone, nor the multiplication of sequential adapters.
"""

from typing import Any, Dict, List, Tuple

_GLUE = ["CoLA", "SST-2", "MRPC", "STS-B", "QQP", "MNLI", "QNLI", "RTE"]
_GLUE_SIZES = [8, 64, 256]
_RATES = [3e-5, 3e-4, 3e-3]  # Section 3.2; section 3.4 refers to it.
_EPOCHS = [3, 20]
_INIT_SCALE = {"adapter_init_scale": 1e-2}  # Section 3.6; the published code has 1e-3.
_FIVE_SEEDS = {"random_seed": [1, 2, 3, 4, 5]}  # Section 3.2.
_THREE_SEEDS = {"random_seed": [1, 2, 3]}  # Captions of Figures 4, 5 and 7.
_ALL_SIZES = [2**power for power in range(10)]  # Caption of Figure 4.
_TOP_LAYERS = list(range(1, 13))  # Caption of Figure 4; twelve layers are full fine-tuning.

_FURTHER_RATES = [1e-5, 3e-5, 1e-4, 3e-3]  # Section 3.3, like the next two.
_FURTHER_SIZES = [2, 4, 8, 16, 32, 64]
_FURTHER_TOP_LAYERS = [1, 2, 3, 5, 7, 9, 11, 12]

# Table 4: (epochs of full fine-tuning, epochs of adapters) of the further tasks.
_FURTHER_EPOCHS = {
    "newsgroups": (50, 50),
    "airline": (50, 20),
    "corporate_messaging": (100, 50),
    "disasters": (50, 50),
    "economic_news_relevance": (20, 20),
    "emotion": (20, 20),
    "global_warming": (100, 50),
    "political_audience": (50, 20),
    "political_bias": (50, 50),
    "political_message": (50, 50),
    "primary_emotions": (100, 100),
    "progressive_opinion": (100, 100),
    "progressive_stance": (100, 100),
    "us_economic_performance": (100, 20),
    "customer_complaints": (20, 20),
    "news_aggregator": (20, 20),
    "sms_spam": (50, 20),
}


def _further_tasks_grids(axes: Dict[str, Any], column: int) -> List[Dict[str, Any]]:
    """Returns a grid for each of the further tasks, with its epochs from a column of Table 4."""
    common = {"learning_rate": _FURTHER_RATES, "do_predict": True, **_FIVE_SEEDS}
    return [
        {"task_name": task, "num_train_epochs": epochs[column], **common, **axes}
        for task, epochs in _FURTHER_EPOCHS.items()
    ]


_TWO_TASKS = {"task_name": ["MNLI", "CoLA"], **_THREE_SEEDS}
_SWEPT = {**_TWO_TASKS, "learning_rate": _RATES, "num_train_epochs": _EPOCHS}
_SQUAD = {
    "script": "run_squad.py",
    "train_file": "$SQUAD_DIR/train-v1.1.json",
    "predict_file": "$SQUAD_DIR/dev-v1.1.json",
    **_THREE_SEEDS,
}
_VARIANT = {**_SWEPT, **_INIT_SCALE}

# Name → (description, grids).
PRESETS: Dict[str, Tuple[str, List[Dict[str, Any]]]] = {
    "glue": (
        "Table 1, Figures 1 and 3: adapters and full fine-tuning on GLUE",
        [
            {
                "task_name": _GLUE,
                "do_predict": True,
                "adapter_size": _GLUE_SIZES,
                "learning_rate": _RATES,
                "num_train_epochs": _EPOCHS,
                **_INIT_SCALE,
                **_FIVE_SEEDS,
            },
            {  # Devlin et al. 2018, section 4.1; the paper gives no grid.
                "task_name": _GLUE,
                "do_predict": True,
                "tuning": "full",
                "learning_rate": [2e-5, 3e-5, 4e-5, 5e-5],
                "num_train_epochs": 3,
                **_FIVE_SEEDS,
            },
        ],
    ),
    "glue_top_layers": (
        "Figures 1 and 3: the top layers only, on GLUE",
        [
            {
                "task_name": _GLUE,
                "tuning": "top_layers",
                "num_top_layers": _TOP_LAYERS,
                "learning_rate": _RATES,
                "num_train_epochs": _EPOCHS,
                **_THREE_SEEDS,
            }
        ],
    ),
    "further_tasks": (
        "Table 2, Figure 3: adapters and full fine-tuning on the 17 further tasks",
        [
            *_further_tasks_grids({"adapter_size": _FURTHER_SIZES, **_INIT_SCALE}, 1),
            *_further_tasks_grids({"tuning": "full"}, 0),
        ],
    ),
    "variable_fine_tuning": (
        "Table 2, Figure 3: the top layers only, on the 17 further tasks",
        _further_tasks_grids({"tuning": "top_layers", "num_top_layers": _FURTHER_TOP_LAYERS}, 0),
    ),
    "sizes": (
        "Figure 4: sizes of adapters, numbers of top layers, LayerNorms only",
        [
            {**_SWEPT, **_INIT_SCALE, "adapter_size": _ALL_SIZES},
            {**_SWEPT, "tuning": "top_layers", "num_top_layers": _TOP_LAYERS},
            {**_SWEPT, "tuning": "layer_norm"},
        ],
    ),
    "squad": (
        "Figure 5: sizes of adapters and numbers of top layers on SQuAD v1.1",
        [
            {
                **_SQUAD,
                **_INIT_SCALE,
                "adapter_size": _ALL_SIZES,
                "learning_rate": [3e-5, 1e-4, 3e-4, 1e-3],
                "num_train_epochs": [3, 10, 20],
            },
            {
                **_SQUAD,
                "tuning": "top_layers",
                "num_top_layers": _TOP_LAYERS,
                "learning_rate": [3e-5, 5e-5, 1e-4],
                "num_train_epochs": [2, 3, 5],
            },
        ],
    ),
    "init_scales": (
        "Figure 6, right: the standard deviation of the adapters' initial weights",
        [{**_SWEPT, "adapter_init_scale": [10.0**power for power in range(-7, 1)]}],
    ),
    "learning_rates": (
        "Figure 7: learning rates of adapters and of full fine-tuning",
        [
            {
                **_TWO_TASKS,
                "learning_rate": [2e-5, 5e-5, 1e-4, 3e-4, 5e-4, 1e-3],
                "num_train_epochs": _EPOCHS,
                **method,
            }
            for method in ({"adapter_size": _GLUE_SIZES, **_INIT_SCALE}, {"tuning": "full"})
        ],
    ),
    "variants": (
        "section 3.6: other adapters",
        [
            _VARIANT,
            {**_VARIANT, "adapter_normalization": ["layer", "batch"]},
            {**_VARIANT, "adapter_depth": [2, 3]},
            {**_VARIANT, "adapter_activation": ["relu", "tanh", "swish"]},
            {**_VARIANT, "adapter_sites": ["attention", "feed_forward"]},
            {**_VARIANT, "adapter_placement": "parallel"},
            {**_VARIANT, "adapter_interaction": "multiply"},
            {**_VARIANT, "adapter_placement": "parallel", "adapter_interaction": "multiply"},
        ],
    ),
}
