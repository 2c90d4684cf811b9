"""Tests of openapi.py: schemathesis generates requests from the schema, and checks responses."""

import os

import hypothesis
import pytest

pytest.importorskip("starlette", reason="requirements-serving.txt is not installed")
pytest.importorskip("schemathesis", reason="requirements-dev.txt is not installed")

# isort: split
import schemathesis
from schemathesis import checks as openapi_checks
from schemathesis.specs.openapi import checks

from adapter_bert.formats import task_adapter
from adapter_bert.serving.http import openapi
from adapter_tests.support import served

_EXAMPLES = int(os.environ.get("ADAPTER_BERT_EXAMPLES", 25))


class OpenApiTest(served.ServedTestCase):
    def setUp(self):
        super().setUp()
        task_adapter.save(os.path.join(self.root, "later"), served.other("sms"))
        self.schema = schemathesis.openapi.from_asgi(
            "/openapi.json", self.api().application(), headers={"Host": "localhost"}
        )

    def test_token_is_required_if_the_server_has_one(self):
        for requires_token, security in ((True, [{"token": []}]), (False, [])):
            self.assertEqual(openapi.document(8, requires_token)["security"], security)

    def check(self, case):
        response = case.call(headers={"Host": "localhost", **dict(case.headers or {})})
        case.validate_response(
            response,
            checks=[
                openapi_checks.not_a_server_error,
                checks.status_code_conformance,
                checks.content_type_conformance,
                checks.response_schema_conformance,
            ],
        )
        return response

    def checked(self, case):
        self.check(case)

    def test_responses_to_generated_requests_conform_to_schema(self):
        operations = [result.ok() for result in self.schema.get_all_operations()]
        self.assertLen(operations, 14)  # All but the document itself.
        settings = hypothesis.settings(
            max_examples=_EXAMPLES,
            deadline=None,
            derandomize=True,
            database=None,
            suppress_health_check=list(hypothesis.HealthCheck),
        )
        for operation in operations:
            with self.subTest(operation.label):
                for mode in schemathesis.GenerationMode:
                    if mode.is_negative and not (operation.body or operation.path_parameters):
                        continue  # The request has no part that could be invalid.
                    strategy = operation.as_strategy(generation_mode=mode)
                    settings(hypothesis.given(strategy)(self.checked))()

    def test_valid_requests_succeed_and_conform_to_schema(self):
        instances = {
            "sms": ["the dog", {"text": "the dog", "text_b": "a cat"}],
            "squad": [{"question": "who", "context": "the dog sees a bird"}],
            "topics": [{"input_ids": [2, 5, 3], "segment_ids": [0, 0, 0]}],
        }
        operation = self.schema["/v1/models/{task}:predict"]["POST"]
        for task, values in instances.items():
            case = operation.Case(
                path_parameters={"task": task},
                body={"instances": values},
                media_type="application/json",
            )
            self.assertEqual(self.check(case).status_code, 200)
        case = self.schema["/v1/models/{task}"]["PUT"].Case(
            path_parameters={"task": "new"},
            body={"adapter": "later"},
            media_type="application/json",
        )
        self.assertEqual(self.check(case).status_code, 201)
        for path in ("/v1/models/{task}/metadata", "/v1/models/{task}"):
            case = self.schema[path]["GET"].Case(path_parameters={"task": "new"})
            self.assertEqual(self.check(case).status_code, 200)
