"""The generated part of the TypeScript client: `python -m tools.typescript --write` (or `make reference`).

It is generated from the OpenAPI document of the server, without a network: `src/generated/types.ts` (the records, with
decoders that check every response) and `src/generated/namespaces.ts` (one class per noun, one method per route). Method
names are those of the declared operations; for other routes they follow the path, and `NAMES` has those that differ.
Streams, the worker, handles and errors are written by hand. `tests/http/test_typescript.py` fails when the files are
not current.
"""

from __future__ import annotations

import functools
import re
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast import App
from holdfast.engine import operation as forms
from holdfast.engine.declared import http_of
from holdfast.server.app import make_service
from tools.typescript_types import NOTICE, Schema, Types, comment, one_or_many

FOLDER = Path(__file__).parents[1] / "clients" / "typescript" / "src" / "generated"
PREFIX = "/api/v1"

NAMES = {
    "approvals.byToken": "approvals.question",
    "approvals.setByToken": "approvals.decide",
    "approvals.token": "approvals.issueToken",
    "archives.jobs": "archives.read",
    "deadLetters.get": "deadLetters.group",
    "deadLetters.list": "deadLetters.groups",
    "events.create": "events.send",
    "jobs.artifactsGet": "jobs.artifact",
    "jobs.externalRef": "jobs.setExternalRef",
    "jobs.batch": "jobs.enqueueMany",
    "jobs.counts": "jobs.count",
    "jobs.create": "jobs.enqueue",
    "jobs.get": "jobs.details",
    "jobs.redriveAs": "deadLetters.redriveAs",
    "jobs.result": "jobs.outcome",
    "leases.create": "leases.open",
    "leases.remove": "leases.end",
    "limits.one": "limits.get",
    "operations.create": "operations.start",
    "payloadRules.one": "payloadRules.get",
    "queues.aging": "queues.setAging",
    "reservations.remove": "reservations.release",
    "schedules.create": "schedules.add",
    "schedules.update": "schedules.edit",
    "tokens.create": "tokens.issue",
    "tokens.remove": "tokens.revoke",
    "workflows.create": "workflows.start",
    "workflows.jobs": "workflows.extend",
    "PUT /tenants/pins/{login}": "tenants.pin",
    "DELETE /tenants/pins/{login}": "tenants.unpin",
}
"""Method names of the Python client that differ from the default, by default name or by route, of routes that are not
declared."""
BY_HAND = {"jobs.enqueue", "jobs.enqueueMany"}
"""Written by hand in `client.ts`; only their types are generated."""
KEYED = {"templates.enqueue", "workflows.start"}
"""Calls that send an idempotency key, so that they can be repeated if the response was lost."""
FENCED = {"leases.renew", "leases.checkpoint", "leases.settle", "leases.release"}
"""Calls that can be repeated, because they carry the lease and the attempt."""
VERBS = {"GET": "list", "POST": "create", "PUT": "set", "PATCH": "update", "DELETE": "remove"}
VERBS_OF_ONE = {"GET": "get", "PUT": "set", "PATCH": "update", "DELETE": "remove"}


@dataclass(frozen=True)
class Operation:
    """One route as a method: ``namespace.name(…parameters, input)``."""

    namespace: str
    name: str
    method: str
    path: str
    document: dict[str, Any]

    @property
    def parameters(self) -> list[str]:
        return re.findall(r"{(\w+)}", self.path)

    @property
    def query(self) -> list[dict[str, Any]]:
        return [parameter for parameter in self.document.get("parameters", []) if parameter["in"] == "query"]

    @property
    def body(self) -> Schema | None:
        request = self.document.get("requestBody")
        if request is None:
            return None
        schema: Schema = request["content"]["application/json"]["schema"]
        options = [option for option in schema.get("anyOf", []) if option.get("type") != "null"]
        return options[0] if len(options) == 1 else schema

    @property
    def input(self) -> str:
        """The name of the input's type."""
        return pascal(self.document["operationId"]) + "Input"

    @property
    def full(self) -> str:
        return f"{self.namespace}.{self.name}"


def camel(text: str) -> str:
    first, *rest = re.split(r"[-_ ]", text)
    return first + "".join(word.capitalize() for word in rest)


def pascal(text: str) -> str:
    name = camel(text)
    return name[0].upper() + name[1:]


@functools.cache
def document() -> dict[str, Any]:
    with closing(App("sqlite:///:memory:")) as app:
        return make_service(app, authenticate=lambda _: None).openapi()


def declared() -> dict[str, str]:
    """The names of declared operations, by route; of two with one route, the first."""
    names: dict[str, str] = {}
    with closing(App("sqlite:///:memory:")) as app:
        nouns = {noun: each for noun in dir(app) if isinstance(each := getattr(app, noun), forms.Namespace)}
    for noun, namespace in nouns.items():
        for verb, form in vars(type(namespace)).items():
            route = http_of(form.program) if isinstance(form, forms.operation) else None
            if route is not None:
                names.setdefault(f"{route.method} {route.path}", f"{camel(noun)}.{camel(verb)}")
    return names


def operations(api: dict[str, Any]) -> list[Operation]:
    """Return each route below the prefix that returns JSON or a file, with the name of its method."""
    result: dict[str, Operation] = {}
    names = declared()
    for path, methods in api["paths"].items():
        if not path.startswith(PREFIX + "/") or path.endswith("/stream"):
            continue
        for method, document in methods.items():
            relative = path.removeprefix(PREFIX)
            default = _default_name(method.upper(), relative, set(methods))
            route = f"{method.upper()} {relative}"
            full_name = NAMES.get(route) or NAMES.get(default) or names.get(route, default)
            namespace, name = full_name.split(".")
            method_of = Operation(namespace, name, method.upper(), relative, document)
            if method_of.full in result:
                raise ValueError(f"two routes are {method_of.full}: give one another name in NAMES ({default})")
            result[method_of.full] = method_of
    return [result[name] for name in sorted(result)]


def _default_name(method: str, path: str, methods: set[str]) -> str:
    first, *rest = path.strip("/").split("/")
    namespace = camel(first)
    words = [part for part in rest if not part.startswith("{")]
    if not words:
        return f"{namespace}.{VERBS_OF_ONE.get(method, VERBS[method]) if rest else VERBS[method]}"
    name = camel("-".join(words))
    if rest[-1].startswith("{") and len(words) == 1 and len(rest) > 2:
        name += "Get"  # one item of a list of the object
    if method != "GET" and "get" in methods:
        name = "set" + name[0].upper() + name[1:]
    return f"{namespace}.{name}"


# -- Methods ---------------------------------------------------------------------------------------------------------


class Methods:
    """The classes and methods, as TypeScript."""

    def __init__(self, types: Types) -> None:
        self._types = types
        self.inputs: dict[str, Schema] = {}
        self._used: dict[str, None] = {}
        self._decoders = {"nothing"}

    def lines(self, operation: Operation) -> Iterator[str]:
        text = str(operation.document.get("description") or operation.document["summary"].capitalize())
        scope = operation.document.get("x-holdfast-scope")
        yield from comment(f"{text.rstrip('.')}. Scope: `{scope}`." if scope else text, indent="  ")
        arguments = [f"{camel(name)}: string" for name in operation.parameters]
        kind, required = self._input(operation)
        if kind is not None:
            arguments.append(f"input: {kind}{'' if required else ' = {}'}")
        arguments.append("options: CallOptions = {}")
        path = re.sub(r"{(\w+)}", lambda match: "${" + camel(match.group(1)) + "}", operation.path)
        parts = [f'method: "{operation.method}"', f"path: path`{path}`", *self._request(operation, kind)]
        request = f"{{ {', '.join(parts)}, ...options }}"
        answer, call = self._answer(operation, request)
        yield f"  {operation.name}({', '.join(arguments)}): {answer} {{"
        yield f"    return {call};"
        yield from ("  }", "")

    def _input(self, operation: Operation) -> tuple[str | None, bool]:
        """Return the type of the input, and whether it is required."""
        body = operation.body
        if body is not None and operation.query:
            raise ValueError(f"{operation.full} has a body and a query, which one input cannot express")
        if body is not None and "anyOf" in body:
            return " | ".join(self._use(self._types.input(one)) for one in body["anyOf"]), True
        if body is not None:
            schema = self._types.named(body)
        elif operation.query:
            fields = {
                one["name"]: {"description": one.get("description"), **one_or_many(one["schema"])}
                for one in operation.query
            }
            if "after" in fields and "limit" in fields:
                fields["limit"] = {
                    "type": "integer",
                    "description": "Stop after this many. Default: read all pages.",
                }
            schema = {
                "properties": fields,
                "required": [one["name"] for one in operation.query if one.get("required")],
            }
        else:
            return None, False
        self.inputs[operation.input] = schema
        return self._use(operation.input), bool(schema.get("required"))

    def _use(self, name: str) -> str:
        self._used[name] = None
        return name

    def _request(self, operation: Operation, kind: str | None) -> Iterator[str]:
        if operation.body is None:
            if kind is not None:
                yield "query: { ...input }"
        elif operation.full in KEYED:
            yield "body: { ...input, key: input.key ?? newKey() }"
        else:
            yield "body: input"
        properties = self.inputs.get(operation.input, {}).get("properties", {})
        if operation.full in KEYED or operation.full in FENCED or operation.method == "PUT":
            yield "repeatable: true"
        elif operation.body is not None and str(properties.get("key", {}).get("description")).startswith(
            "Idempotency key"
        ):
            yield "repeatable: input.key !== undefined"
        if "wait" in properties:
            yield "extraTimeout: 1_000 * Number(input.wait ?? 0)"

    def _answer(self, operation: Operation, request: str) -> tuple[str, str]:
        """Return the result type of the method, and the expression that makes the request."""
        success = next(one for status, one in operation.document["responses"].items() if status.startswith("2"))
        content = success.get("content", {})
        if not content:
            return "Promise<void>", f"this.transport.ask(nothing, {request})"
        if "application/json" not in content:
            return "Promise<Uint8Array>", f"this.transport.bytes({request})"
        schema = content["application/json"]["schema"]
        named = self._types.named(schema)
        if set(named.get("properties", ())) == {"items", "next"}:
            item = named["properties"]["items"]["items"]
            kind = self._types.response(item)
            self._used |= dict.fromkeys(re.findall(r"\b[A-Z]\w+", kind))
            name = "pages" if "after" in {one["name"] for one in operation.query} else "whole"
            return f"Pages<{kind}>", f"this.{name}({self._decoder(item)}, {request})"
        kind = self._types.response(schema)
        self._used |= dict.fromkeys(name for name in re.findall(r"\b[A-Z]\w+", kind) if name not in ("Date", "Record"))
        call = f"this.transport.ask({self._decoder(schema)}, {request})"
        return (
            f"Promise<{kind}>",
            f"{call}.then((answer) => ours(input.key, answer))" if operation.full in KEYED else call,
        )

    def _decoder(self, schema: Schema) -> str:
        expression = self._types.decoder(schema)
        self._used |= dict.fromkeys(re.findall(r"decode\w+", expression))
        self._decoders |= set(re.findall(r"\b[a-z]+\b", expression))
        return expression

    def text(self, operations: list[Operation]) -> str:
        classes: dict[str, list[str]] = {}
        for operation in operations:
            lines = list(self.lines(operation))
            if operation.full not in BY_HAND:
                classes.setdefault(operation.namespace, []).extend(lines)
        body = []
        for namespace, lines in sorted(classes.items()):
            body += [f"export class {pascal(namespace)}Namespace extends Namespace {{", *lines[:-1], "}", ""]
        body += ["/** All namespaces, over one transport. */", "export class Namespaces {"]
        body += [f"  readonly {name}: {pascal(name)}Namespace;" for name in sorted(classes)]
        body += ["", "  constructor(transport: Transport) {"]
        body += [f"    this.{name} = new {pascal(name)}Namespace(transport);" for name in sorted(classes)]
        text = "\n".join([*body, "  }", "}", ""])
        decoders = sorted(name for name in self._used if name.startswith("decode") and re.search(rf"\b{name}\b", text))
        types = sorted(name for name in self._used if re.search(rf"\b{name}\b", text) and not name.startswith("decode"))
        plain = sorted(self._decoders)
        return "\n".join(
            [
                NOTICE,
                "",
                f'import {{ {", ".join(plain)} }} from "../decoder.js";',
                'import { Namespace, newKey, ours, path, type CallOptions, type Pages } from "../namespace.js";',
                'import type { Transport } from "../transport.js";',
                f'import {{ {", ".join(decoders)} }} from "./types.js";',
                f'import type {{ {", ".join(types)} }} from "./types.js";',
                "",
                text,
            ]
        )


def generated() -> dict[Path, str]:
    """Return the text of each file."""
    api = document()
    types = Types(api)
    methods = Methods(types)
    namespaces = methods.text(operations(api))
    return {FOLDER / "namespaces.ts": namespaces, FOLDER / "types.ts": types.text(methods.inputs)}


if __name__ == "__main__":
    for file, text in generated().items():
        if "--write" in sys.argv:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
        elif file.read_text(encoding="utf-8") != text:
            sys.exit(f"{file.name} is not current: run `make reference`")
