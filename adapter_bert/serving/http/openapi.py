"""Builds the OpenAPI document of `rest_api`."""

from typing import Any, Dict, List, Optional, Tuple

from adapter_bert import __version__
from adapter_bert.formats import adapter_folders, task_adapter
from adapter_bert.model import task_kinds
from adapter_bert.serving.http import embeddings
from adapter_bert.serving.inference import bank

_JSON = "application/json"


def document(max_instances: int, requires_token: bool) -> Dict[str, Any]:
    """Returns the document, a dict of JSON values.

    Args:
      max_instances: maximum number of instances in a request.
      requires_token: bool; whether requests need the token.
    """
    return {
        "openapi": "3.1.0",
        "info": {"title": "adapter-bert", "version": __version__},
        "paths": _paths(max_instances),
        "security": [{"token": []}] if requires_token else [],
        "components": {"securitySchemes": {"token": {"type": "http", "scheme": "bearer"}}},
    }


def _paths(max_instances: int) -> Dict[str, Any]:
    """Returns the operations by path."""
    instance = _instance_schema()
    mixed = {"type": "object", "properties": {"task": {"type": "string"}}, "required": ["task"]}
    prediction = {
        "oneOf": [
            _request_schema("instances", _list_of(instance, max_instances)),
            _request_schema("inputs", _columns_schema(instance, max_instances)),
        ]
    }
    predict_mixed = _request_schema("instances", _list_of(mixed, max_instances))
    paths: Dict[str, Any] = {
        "/v1/models": {"get": _operation("Lists all tasks", {200: _MODELS})},
        "/v1/models/{task}": {
            "parameters": [_TASK],
            "get": _operation("Returns a task's state", {200: _STATUS}, (404,)),
            "put": _operation(
                "Adds or replaces a task",
                {200: _SUMMARY, 201: _SUMMARY},
                (408, 413, 504, 507),
                _CHANGE,
            ),
            "delete": _operation("Removes a task", {200: _VERSION}, (404, 504)),
        },
        **_of_a_task("", [_TASK], prediction),
        **_of_a_task("/versions/{version}", [_TASK, _VERSION_NUMBER], prediction),
        "/v1/models:predict": {
            "post": _operation(
                "Predicts instances of any tasks",
                {200: _ANSWERS},
                _PREDICTION_ERRORS,
                {_JSON: {"schema": predict_mixed}},
            )
        },
        "/v1/embeddings": {
            "post": _operation(
                "Returns the vectors of texts in OpenAI's format",
                {200: _EMBEDDINGS},
                _PREDICTION_ERRORS,
                {_JSON: {"schema": _embeddings_schema(max_instances)}},
            )
        },
        "/healthz": {"get": _operation("Returns whether the server is alive", {200: _STATE})},
        "/readyz": {"get": _operation("Has status 503 while loading or stopping", {200: _STATE})},
        "/metrics": {"get": _operation("Returns metrics for Prometheus", {200: None})},
        "/openapi.json": {"get": _operation("Returns this document", {200: {"type": "object"}})},
    }
    paths["/v1/models/{task}/versions/{version}"] = {
        "parameters": [_TASK, _VERSION_NUMBER],
        "get": _operation("Returns the state of a version on disk", {200: _STATUS}, (404,)),
    }
    for path in ("/healthz", "/readyz", "/openapi.json"):
        paths[path]["get"]["security"] = []
    return paths


def _of_a_task(
    version: str, parameters: List[Dict[str, Any]], prediction: Dict[str, Any]
) -> Dict[str, Any]:
    """Returns the operations on a task, or on one of its versions."""
    return {
        f"/v1/models/{{task}}{version}/metadata": {
            "parameters": parameters,
            "get": _operation("Returns a task's metadata", {200: _METADATA}, (404,)),
        },
        f"/v1/models/{{task}}{version}:predict": {
            "parameters": parameters,
            "post": _operation(
                "Predicts instances of a task",
                {200: _ANSWERS},
                _PREDICTION_ERRORS,
                {_JSON: {"schema": prediction}},
            ),
        },
    }


def _object(
    properties: Dict[str, Any], required: Optional[List[str]] = None, **options: Any
) -> Dict[str, Any]:
    """Returns the schema of an object without further properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties) if required is None else required,
        "additionalProperties": False,
        **options,
    }


def _list_of(items: Dict[str, Any], max_items: int) -> Dict[str, Any]:
    return {"type": "array", "items": items, "minItems": 1, "maxItems": max_items}


def _instance_schema() -> Dict[str, Any]:
    """Returns the schema of an instance: a text, a kind of task's texts, or token ids."""
    kinds = task_kinds.kinds()
    text, schemas = {"type": "string"}, [{"type": "string"}]
    for fields, num_required in dict.fromkeys((kind.fields, kind.num_required) for kind in kinds):
        properties = dict.fromkeys(fields, text)
        schemas.append(_object(properties, list(fields[:num_required])))
    for field in {kind.words_field for kind in kinds if kind.words_field}:
        schemas.append(_object({field: {"type": "array", "items": text}}))
    ids = {"type": "array", "items": {"type": "integer", "minimum": 0}, "minItems": 1}
    names = ("input_ids", "input_mask", "segment_ids")
    schemas.append(_object(dict.fromkeys(names, ids), ["input_ids"]))
    return {"anyOf": schemas}


def _columns_schema(instance: Dict[str, Any], max_instances: int) -> Dict[str, Any]:
    columns = {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {"type": "array", "minItems": 1, "maxItems": max_instances},
    }
    return {"anyOf": [_list_of(instance, max_instances), columns]}


def _request_schema(name: str, schema: Dict[str, Any]) -> Dict[str, Any]:
    signature = {"type": "string", "const": "serving_default"}
    return _object({name: schema, "signature_name": signature}, [name])


def _embeddings_schema(max_texts: int) -> Dict[str, Any]:
    text = {"type": "string"}
    properties = {
        "model": {"anyOf": [_TASK["schema"], {"const": embeddings.BERT}]},
        "input": {"anyOf": [text, _list_of(text, max_texts)]},
        "encoding_format": {"enum": list(embeddings.FORMATS)},
        "dimensions": {"type": "integer"},
        "user": text,
        "layer": {"type": "integer"},
        "pooling": {"enum": list(bank.POOLINGS)},
    }
    return _object(properties, ["model", "input"])


_TASK: Dict[str, Any] = {
    "name": "task",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": f"^{adapter_folders.TASK_NAME}$"},
}
_VERSION_NUMBER = {
    "name": "version",
    "in": "path",
    "required": True,
    "schema": {"type": "string", "pattern": "^[1-9][0-9]{0,17}$"},
}
_FILE = {"type": "string", "contentMediaType": "application/octet-stream"}
_CHANGE = {
    _JSON: {"schema": _object({"adapter": {"type": "string"}})},
    "multipart/form-data": {"schema": _object(dict.fromkeys(task_adapter.FILES, _FILE))},
}
_COMMON_ERRORS = (400, 401, 403, 405, 415, 431, 500, 503)
_PREDICTION_ERRORS = (404, 408, 413, 504)
_ERROR = _object({"error": {"type": "string"}})
_STATE = _object({"status": {"enum": ["alive", "ready"]}})
_VERSION = _object({"name": {"type": "string"}, "version": {"type": "string"}})
_STATUS = _object({"model_version_status": {"type": "array", "items": {"type": "object"}}})
_METADATA = _object({"model_spec": {"type": "object"}, "metadata": {"type": "object"}})
_EMBEDDINGS = _object(
    {
        "object": {"const": "list"},
        "data": {
            "type": "array",
            "items": _object(
                {
                    "object": {"const": "embedding"},
                    "index": {"type": "integer"},
                    "embedding": {"type": ["array", "string"], "items": {"type": "number"}},
                }
            ),
        },
        "model": {"type": "string"},
        "usage": _object(dict.fromkeys(("prompt_tokens", "total_tokens"), {"type": "integer"})),
    }
)
_STRINGS = {"type": "array", "items": {"type": "string"}}
_TEXTS = {"type": "object", "additionalProperties": {"type": "string"}}
_SUMMARY = _object(
    {
        "name": {"type": "string"},
        "version": {"type": "string"},
        "task": {"type": "string"},
        "kind": {"enum": task_kinds.names()},
        "labels": _STRINGS,
        "label_descriptions": _TEXTS,
        "fields": _STRINGS,
        "num_required_fields": {"type": "integer"},
        "example": _TEXTS,
        "examples": {"type": "array", "items": _TEXTS},
        "max_seq_length": {"type": "integer"},
        "do_lower_case": {"type": "boolean"},
        "scores": {"type": "object", "additionalProperties": {"type": ["number", "null"]}},
        "digest": {"type": "string"},
        "steps": {"type": "integer"},
        "date": {"type": "string"},
        "size": {"type": "integer"},
        "package": {"type": ["string", "null"]},
    }
)
_MODELS = _object({"models": {"type": "array", "items": _SUMMARY}})
_ANSWERS = {
    "oneOf": [
        _object({"predictions": {"type": "array", "items": {"type": ["object", "number"]}}}),
        _object({"outputs": {"type": ["object", "array"]}}),
    ]
}


def _operation(
    summary: str,
    answers: Dict[int, Optional[Dict[str, Any]]],
    errors: Tuple[int, ...] = (),
    body: Optional[Dict[str, Any]] = None,
) -> Dict[str, Any]:
    """Returns an operation, given the schemas of its answers by status; None means plain text."""
    responses: Dict[str, Any] = {}
    for status, schema in answers.items():
        content = {"text/plain": {}} if schema is None else {_JSON: {"schema": schema}}
        responses[str(status)] = {"description": "Done", "content": content}
    for status in (*_COMMON_ERRORS, *errors):
        content = {_JSON: {"schema": _ERROR}}
        responses[str(status)] = {"description": "An error", "content": content}
    operation: Dict[str, Any] = {"summary": summary, "responses": responses}
    if body:
        operation["requestBody"] = {"required": True, "content": body}
    return operation
