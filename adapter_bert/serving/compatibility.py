"""Tells which tasks can share an encoder, and which tensors are task-specific.

Each task may have its own adapters, LayerNorms, pooler and head. All else belongs to the backbone.
"""

from typing import Any, Dict, Iterable, List, NamedTuple

from adapter_bert.common import configs, model_variables, task_kinds
from adapter_bert.common.errors import UserError
from adapter_bert.formats import task_adapter
from adapter_bert.tasks import presentations

HEAD = ("output_weights", "output_bias")

# The variants that the encoders of several tasks compute. Each site has tables of its own.
_VARIANTS = {
    "sites": tuple(configs.SITES),
    "placement": ("sequential", "parallel"),
    "interaction": ("add", "multiply"),
}


class Architecture(NamedTuple):
    """The adapter settings that all tasks of one encoder share; see `configs.AdapterConfig`."""

    activation: str = "gelu"
    placement: str = "sequential"
    interaction: str = "add"


def architecture_of(adapter: configs.AdapterConfig) -> Architecture:
    """Returns the `Architecture` of a `configs.AdapterConfig`."""
    activation = adapter.activation.lower() or "linear"  # As in `modeling.get_activation`.
    return Architecture(activation, adapter.placement, adapter.interaction)


def common_architecture(adapters: Iterable[task_adapter.TaskAdapter]) -> Architecture:
    """Returns the `Architecture` that all adapters share; raises UserError if they differ."""
    settings = [adapter.description.adapter for adapter in adapters]
    architectures = {architecture_of(config) for config in settings if config} or {Architecture()}
    if len(architectures) > 1:
        variants = " and ".join(sorted("/".join(architecture) for architecture in architectures))
        raise UserError(
            f"Adapters of different activation, placement or interaction ({variants}) cannot share"
            " a model: export their tasks separately."
        )
    return architectures.pop()


def check_compatible(
    description: task_adapter.Description, backbone: task_adapter.Backbone, where: str
) -> None:
    """Checks that a task can share an encoder with others.

    Args:
      description: `task_adapter.Description`.
      backbone: `task_adapter.Backbone` of the encoder.
      where: begins the error message.

    Raises:
      UserError: it has no labels, was trained on another BERT, reads pairs with a BERT of a single
        segment id, or trained parameters that tasks must share.
    """
    expected, actual = _backbone_identity(backbone), _backbone_identity(description.backbone)
    for name in (name for name in expected if expected[name] != actual[name]):
        raise UserError(
            f"{where} was trained on another BERT, {description.backbone.name}, whose {name} is"
            f" {actual[name]}; expected {expected[name]} ({backbone.name})."
        )
    presentation, num_required = presentations.of(description)
    configs.check_pairs(backbone.bert_config(), presentation.fields[:num_required], where)
    if not task_kinds.get(description.kind).num_outputs(len(description.labels)):
        raise UserError(f"{where} has no labels, so that it cannot answer.")
    variants = _unsupported_variants(description.adapter) if description.adapter else []
    if variants:
        unsupported = [f"adapters with {', '.join(variants)}"]
    else:
        try:
            trained = set(map(table_name, task_adapter.shapes(description)))
        except UserError as error:
            raise UserError(f"{where}: {error}") from None
        unsupported = sorted(trained - set(row_shapes(backbone.bert_config())))
    if unsupported:
        raise UserError(
            f"{where} (--tuning={description.tuning.method}) trained {unsupported[0]}; tasks that"
            " share a model may only train plain adapters, LayerNorms, the pooler and the head."
        )


def _unsupported_variants(settings: configs.AdapterConfig) -> List[str]:
    """Returns those settings that the encoders of several tasks do not compute, as texts."""
    variants = [] if settings.fn.lower() == configs.FEEDFORWARD_ADAPTER else [f"fn {settings.fn}"]
    return variants + [
        f"{name} {value}"
        for name, value in settings.variant().items()
        if value not in _VARIANTS.get(name, ())
    ]


def _backbone_identity(backbone: task_adapter.Backbone) -> Dict[str, Any]:
    """Returns what identifies a BERT. An adapter may claim any fingerprint, so sizes count too."""
    names = "hidden_size", "num_hidden_layers", "num_attention_heads", "hidden_act"
    return {"fingerprint": backbone.fingerprint, **{n: backbone.config.get(n) for n in names}}


def table_name(name: str) -> str:
    """Returns the table of a task adapter's tensor; heads of all kinds share their tables."""
    variable = name.rpartition("/")[2]
    return variable if variable in HEAD else name


def row_shapes(config: configs.BertConfig) -> model_variables.Shapes:
    """Returns a dict from the names of tables to the shape of a row."""
    width = config.hidden_size
    encoder = model_variables.encoder_shapes(config)
    shapes = {name: shape for name, shape in encoder.items() if is_task_specific(name)}
    for index in range(config.num_hidden_layers):
        for site in configs.SITES["both"]:
            scope = f"bert/encoder/layer_{index}/{site}/adapters/"
            shapes[scope + "weights1"] = shapes[scope + "weights2"] = (width,)
            shapes[scope + "biases1"] = ()
            shapes[scope + "biases2"] = (width,)
    shapes["output_weights"] = (width,)
    shapes["output_bias"] = ()
    return shapes


def is_task_specific(name: str) -> bool:
    """Returns whether an encoder's tensor is task-specific: LayerNorms and the pooler are."""
    return "/LayerNorm/" in name or is_pooler(name)


def is_pooler(name: str) -> bool:
    """Returns whether a tensor belongs to the pooler."""
    return name.startswith("bert/pooler/")
