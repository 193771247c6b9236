"""The JSON Schema that psd prints matches psd: the examples validate and are listed; keys, defaults, bounds and choices of
the schema and of the daemon are the same. configs/psd.schema.json and docs/reference/configuration.md are up to date with it.

usage: schema_test.py CONFIGS_FOLDER PSD_PROGRAM
Exits 4 (skipped) when Python's jsonschema is missing.
"""

import copy
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

try:
    import jsonschema
except ModuleNotFoundError:
    print("skipped: python3 has no module 'jsonschema'; scripts/setup installs it")
    sys.exit(4)

CONFIGS = pathlib.Path(sys.argv[1])
PSD = sys.argv[2]
SCHEMA = json.loads(subprocess.run([PSD, "check", "--schema"], capture_output=True, text=True, timeout=60, check=True).stdout)
VALIDATOR = jsonschema.Draft202012Validator(SCHEMA)



def types(schema):
    """The values of `type` that choose among alternatives."""
    return [one["properties"]["type"]["const"] for one in schema["oneOf"] if "properties" in one]


OPTIMIZERS = types(SCHEMA["properties"]["optimizer"])
SCHEDULED = [one["properties"]["type"]["const"] for one in SCHEMA["properties"]["optimizer"]["oneOf"] if "schedule" in one["properties"]]
AGGREGATORS = types(next(one["properties"]["aggregator"] for one in SCHEMA["properties"]["policy"]["oneOf"]
                         if "aggregator" in one["properties"]))

# Together these reach every key.
DOCUMENTS = [
    {"publish": {}},
    {"publish": {"from": "publishers"}},
    {"publish": {"from": "upstream", "upstream": ["tcp://node7:5500"]}},
    {},
    {"devices": ["cpu", "cuda:0"], "world_size": 2, "threads": 2},
    {"world_size": {"max": 4}, "shards": 3},
    {"optimizer": {"type": "adagrad"}},
    {"optimizer": {"type": "rmsprop", "schedule": {"type": "step", "every_updates": 10}}},
    {"optimizer": {"type": "adam", "schedule": {"type": "cosine", "total_updates": 10}}},
    {"optimizer": {"type": "adamw"}},
    {"model": {"tensors": [{"name": "w", "shape": [2, 3]}]}},
    {"model": {"tables": [{"name": "user", "dim": 4}]}, "row_shards": 2,
     "tables": [{"match": ["user"], "max_rows": 9}]},
    {"model": {"tables": [{"name": "user", "dim": 4}]},
     "tables": [{"match": ["user"], "evict": {"by": "age", "updates": 9}, "admit": {"after_pushes": 2}}]},
    {"model": {"tables": [{"name": "user", "dim": 4}]},
     "tables": [{"match": ["user"], "max_rows": 9, "evict": {"by": "least_recent"}, "admit": {"probability": 0.5}}]},
    {"model": {"tables": [{"name": "user", "dim": 4}]},
     "tables": [{"match": ["user"], "evict": {"by": "norm", "below": 0.5}}]},
    {"model": {"tables": [{"name": "user", "dim": 4, "initial": {"type": "normal"}}]},
     "optimizer": {"type": "rowwise_adagrad"}},
    {"model": {"file": "values.safetensors"}},
    {"policy": {"type": "locked"}},
    {"policy": {"type": "bounded_staleness"}},
    {"policy": {"type": "sync"}},
    *({"policy": {"type": "sync", "aggregator": {"type": type}}} for type in AGGREGATORS),
    {"policy": {"type": "hogwild", "staleness": {"rate": "damped", "a": 0.5, "max": 9}, "clip": {"value": 1}}},
    *({"policy": {"type": type, "staleness": {"rate": "damped", "a": 0.5, "max": 9}, "clip": {"value": 1},
                  "delay_compensation": {"lambda": 1}}} for type in ("locked", "bounded_staleness")),
    *({"policy": {"type": type, "clip": {"norm": 1}}} for type in ("locked", "bounded_staleness", "sync")),
    {"policy": {"type": "sync", "clip": {"value": 1}}},
    {"policy": {"type": "locked", "staleness": {}}},
    {"policy": {"type": "easgd"}},
    *({"policy": {"type": "allreduce", "clip": clip}} for clip in ({"norm": 1}, {"value": 1})),
    *({"policy": {"type": "local_sgd", "aggregator": {"type": type}}}
      for type in AGGREGATORS),
    *({"policy": {"type": "diloco", "aggregator": {"type": type}}, "optimizer": {"type": "sgd"}}
      for type in AGGREGATORS),
    {"policy": {"type": "sync", "aggregator": {"type": "rda", "direct": ["embed*"]}}},
    {"policy": {"type": "diloco", "late": {"rate": 0.5}}, "optimizer": {"type": "sgd"}},
    *({"policy": {"type": "async_diloco", "inner": {"type": type, "schedule": schedule}}, "optimizer": {"type": "delayed_nesterov"}}
      for type in ("adamw", "adam", "sgd") for schedule in ({}, {"type": "cosine", "total_steps": 10})),
    {"policy": {"type": "async_diloco", "learners": 3, "dynamic_period": True}, "optimizer": {"type": "sgd"}},
    {"policy": {"type": "diloco", "grace_ms": "auto"}, "optimizer": {"type": "sgd"}},
    *({"policy": {"type": "diloco", "grace_ms": 9, "inner": {"type": type, "schedule": schedule}}, "optimizer": {"type": "sgd"}}
      for type in ("adamw", "adam", "sgd") for schedule in ({}, {"type": "cosine", "total_steps": 10})),
    {"groups": [{"match": ["fc*", "conv1.bias"], "policy": {"type": "locked"}, "optimizer": {"type": "adam"}}]},
    {"policy": {"type": "diloco"}, "optimizer": {"type": "sgd"},
     "groups": [{"match": ["fc*"], "policy": {"type": "diloco", "quorum": 2, "grace_ms": "auto"}}, {"match": ["a"], "optimizer": {"type": "adam"}}]},
    *({"policy": {"type": "diloco"}, "optimizer": {"type": "sgd"},
       "groups": [{"match": ["fc*"], "policy": {"type": "diloco", "grace_ms": 9, "aggregator": {"type": type}}}]}
      for type in AGGREGATORS),
    {"policy": {"type": "diloco"}, "optimizer": {"type": "sgd"}, "groups": [{"match": ["fc*"], "policy": {"type": "diloco", "late": {"rate": 0.5}}}]},
    {"auth": {"tokens": "tokens", "certificates": {"trainer-*": "trainer"}, "local": "reader"}},
    {"listen": ["tls://localhost:1"], "tls": {"certificate": "c.pem", "key": "c.key"}},
    {"daemons": ["tcp://10.0.0.1:5500", "unix:///run/psd.sock,tcp://10.0.0.2:5500"], "index": 1},
    {"daemons": ["tcp://10.0.0.1:5500"]},
    {"policy": {"type": "locked"}, "engine": {"endpoints": ["http://10.0.0.1:2379"], "prefix": "/psd/mnist"},
     "replication": {"wait": "none"}},
    {"policy": {"type": "locked"},
     "engine": {"type": "etcd", "endpoints": ["https://etcd-0:2379", "https://[::1]"], "prefix": "/psd", "user": "psd",
                "password_file": "password", "tls": {"ca": "ca.pem", "certificate": "c.pem", "key": "c.key"}}},
    {"durability": {"type": "checkpoint", "path": "saved"}},
    {"policy": {"type": "locked"}, "durability": {"type": "log", "path": "saved"}},
]
# With a default, and left out beside another key of their object.
EXCLUDED = {"counters", "tensors", "tables", "device", "grace_max_ms"}
# Without a default in the schema: worked out from the machine or the aggregator.
COMPUTED = {"threads", "quorum"}
# Read by editors alone.
FOR_EDITORS = {"$schema"}


def without_comments(text):
    """JSON with // and /* */ comments as plain JSON; strings are unchanged."""
    token = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*|/\*.*?\*/', re.DOTALL)
    return token.sub(lambda found: found[0] if found[0].startswith('"') else " ", text)


def check(document):
    """The effective configuration, or the error line, of `psd check`."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        json.dump(document, file)
        file.flush()
        done = subprocess.run([PSD, "check", file.name], capture_output=True, text=True, timeout=60, check=False)
    if done.returncode == 0:
        return json.loads(done.stdout), None
    return None, done.stderr


def branch(schema, value):
    """The alternative of a oneOf that holds for `value`."""
    for option in schema.get("oneOf", []):
        if VALIDATOR.evolve(schema=option).is_valid(value):
            return branch(option, value)
    return schema


def walk(schema, effective, given, path=()):
    """Yields (path, property's schema, its effective value or None, whether it was given)."""
    for key, child in branch(schema, effective).get("properties", {}).items():
        here = path + (key,)
        value = effective.get(key)
        yield here, child, value, key in given
        if isinstance(value, dict):
            yield from walk(child, value, given.get(key, {}), here)
        elif isinstance(value, list) and "properties" in child.get("items", {}):
            for i, element in enumerate(value):
                yield from walk(child["items"], element, given[key][i], here + (i,))


# What policy and optimizer of the model may be, and of a group as well.
TOP_LEVEL = [option for key in ("policy", "optimizer") for option in SCHEMA["properties"][key]["oneOf"]]


def declared(schema, path=""):
    """Every property that the schema declares, alternatives distinguished by their constants."""
    if path.startswith(".groups") and schema in TOP_LEVEL:
        return  # those of the top level once more
    for option in schema.get("oneOf", []):
        yield from declared(option, path)
    name = schema.get("properties", {}).get("type", {}).get("const", "")
    for key, child in schema.get("properties", {}).items():
        here = f"{path}.{name}:{key}" if name else f"{path}.{key}"
        yield here
        yield from declared(child, here)
        yield from declared(child.get("items", {}), here)


def present(schema, effective, path=""):
    """The same names as declared(), for what an effective configuration holds."""
    schema = branch(schema, effective)
    if "propertyNames" in schema:  # names that the user chooses
        return
    name = schema.get("properties", {}).get("type", {}).get("const", "")
    for key, value in effective.items():
        here = f"{path}.{name}:{key}" if name else f"{path}.{key}"
        yield here
        child = schema["properties"][key]
        if isinstance(value, dict):
            yield from present(child, value, here)
        elif isinstance(value, list) and value and isinstance(value[0], dict):
            yield from present(child["items"], value[0], here)


def with_value(document, effective, path, value):
    """A copy of `document` with `value` at `path`, and the types of the objects on that path."""
    result = copy.deepcopy(document)
    target = result
    for key in path[:-1]:
        effective = effective[key]
        target = target[key] if isinstance(target, list) else target.setdefault(key, {})
        if isinstance(target, dict) and "type" in effective:
            target.setdefault("type", effective["type"])
    target[path[-1]] = value
    return result


def dotted(path):
    text = ""
    for key in path:
        text += f"[{key}]" if isinstance(key, int) else f".{key}"
    return text.removeprefix(".")


class SchemaTest(unittest.TestCase):
    def effective(self, document):
        effective, error = check(document)
        self.assertIsNone(error, document)
        return effective

    def test_schema_is_a_schema(self):
        jsonschema.Draft202012Validator.check_schema(SCHEMA)

    def test_page_and_file_are_in_step(self):
        script = CONFIGS.parent / "scripts" / "config_reference.py"
        done = subprocess.run([sys.executable, script, PSD, "--check"], capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual((0, ""), (done.returncode, done.stderr))

    def test_every_key_has_a_sentence(self):
        def keys(node):
            if isinstance(node, dict):
                for name, child in node.get("properties", {}).items() if "additionalProperties" in node else []:
                    yield name, child
                for child in node.values():
                    yield from keys(child)
            elif isinstance(node, list):
                for child in node:
                    yield from keys(child)

        for name, key in keys(SCHEMA):
            with self.subTest(name):
                self.assertRegex(key.get("description", ""), r"^\S.+[.:)]$")

    def test_every_object_is_closed(self):
        def objects(node, place):
            if isinstance(node, dict):
                if "propertyNames" in node:  # names that the user chooses
                    self.assertIsInstance(node.get("additionalProperties"), dict, place)
                elif node.get("type") == "object":
                    self.assertIs(node.get("additionalProperties"), False, place)
                for key, child in node.items():
                    objects(child, f"{place}/{key}")
            elif isinstance(node, list):
                for i, child in enumerate(node):
                    objects(child, f"{place}/{i}")

        objects(SCHEMA, "#")

    def test_every_example_validates(self):
        examples = sorted(set(CONFIGS.glob("*.json")) - {CONFIGS / "psd.schema.json"})
        self.assertGreaterEqual(len(examples), 4)
        page = (CONFIGS.parent / "docs" / "reference" / "configuration.md").read_text()
        for example in examples:
            with self.subTest(example.name):
                self.assertIn(f"| `configs/{example.name}` |", page)
                document = json.loads(without_comments(example.read_text()))
                VALIDATOR.validate(document)
                VALIDATOR.validate(self.effective(document))

    def test_every_effective_key_is_in_the_schema(self):
        for document in DOCUMENTS:
            with self.subTest(document):
                VALIDATOR.validate(document)
                VALIDATOR.validate(self.effective(document))

    def test_an_aggregator_by_its_type_alone(self):
        for policy in ("sync", "local_sgd", "diloco"):
            for type in AGGREGATORS:
                short, whole = ({"policy": {"type": policy, "aggregator": given}, "optimizer": {"type": "sgd"}}
                                for given in (type, {"type": type}))
                VALIDATOR.validate(short)
                self.assertEqual(self.effective(short), self.effective(whole))

    def test_every_key_of_the_schema_is_read(self):
        read = set()
        for document in DOCUMENTS:
            read.update(present(SCHEMA, self.effective(document)))
        for optimizer in OPTIMIZERS:
            schedules = ({"type": "step", "every_updates": 1}, {"type": "cosine", "total_updates": 1}, {})
            for schedule in schedules if optimizer in SCHEDULED else (None,):
                document = {"optimizer": {"type": optimizer, **({} if schedule is None else {"schedule": schedule})}}
                read.update(present(SCHEMA, self.effective(document)))
        self.assertEqual({"." + key for key in FOR_EDITORS}, set(declared(SCHEMA)) - read)

    def test_defaults_are_equal(self):
        for document in DOCUMENTS:
            for path, schema, value, given in walk(SCHEMA, self.effective(document), document):
                with self.subTest(document=document, key=dotted(path)):
                    if given or path[-1] in COMPUTED | FOR_EDITORS or isinstance(value, dict):
                        continue
                    if value is None:
                        # A store of weights has no keys of training.
                        is_store = document.get("publish", {}).get("from", "training") != "training"
                        self.assertTrue("default" not in schema or path[-1] in EXCLUDED or is_store)
                    else:
                        self.assertEqual(schema.get("default"), value)

    def test_bounds_are_equal(self):
        for document in DOCUMENTS:
            effective = self.effective(document)
            for path, schema, value, _ in walk(SCHEMA, effective, document):
                if value is None or schema.get("type") not in ("integer", "number"):
                    continue
                if document and path[0] not in document:
                    continue  # checked with the empty document
                whole = schema["type"] == "integer"
                low, high = (schema.get(bound, schema.get(f"exclusiveM{bound[1:]}")) for bound in ("minimum", "maximum"))
                inside = ([low] if "minimum" in schema else []) + ([high] if "maximum" in schema else [])
                outside = [low - 1 if "minimum" in schema else low] + [high + 1 if "maximum" in schema else high] + ([low + 0.5] if whole else [])
                for number, allowed in [(n, True) for n in inside] + [(n, False) for n in outside]:
                    changed = with_value(document, effective, path, number)
                    with self.subTest(changed):
                        _, error = check(changed)
                        rule = re.escape(dotted(path)) + ": must be an? (number|integer) "
                        refused = re.search(rule, error or "") is not None
                        self.assertEqual(refused, not allowed, error)

    def test_choices_are_equal(self):
        effective = self.effective({})
        for path, schema, _, _ in walk(SCHEMA, effective, {}):
            for choice in schema.get("enum", []):
                with self.subTest(key=dotted(path), choice=choice):
                    self.assertEqual(choice, self.at(with_value({}, effective, path, choice), path))
            if "enum" in schema:
                _, error = check(with_value({}, effective, path, "no such choice"))
                listed = ", ".join(f'"{choice}"' for choice in schema["enum"])
                self.assertIn(f"{dotted(path)}: must be one of {listed}, not", error)

    def test_codecs_are_equal(self):
        for direction in ("push", "pull"):
            schema = SCHEMA["properties"]["codecs"]["properties"][direction]["properties"]
            _, error = check({"codecs": {direction: {"allowed": ["no such codec"]}}})
            known = re.search(r"must be one of (.+), not", error)[1].split(", ")
            self.assertEqual(known, schema["allowed"]["items"]["enum"])
            for name in known:
                with self.subTest(direction=direction, codec=name):
                    document = {"codecs": {direction: {"default": name}}}
                    VALIDATOR.validate(document)
                    self.effective(document)

    def test_options_of_codecs_are_equal(self):
        for direction in ("push", "pull"):
            names = SCHEMA["properties"]["codecs"]["properties"][direction]["properties"]["allowed"]["items"]["enum"]
            for name in names:
                for options in ("", ":", ":fraction=0.5", ":fraction=1e-3", ":fraction=1", ":fraction=.5,", ":fraction=half", ":fraction=2",
                                ":fraction=", ":fraction=0.5,fraction=0.5", ":momentum=0", ":momentum=0.9,fraction=0.01", ":bits=4", ":x"):
                    document = {"codecs": {direction: {"default": name + options}}}
                    with self.subTest(document):
                        self.assertEqual(check(document)[1] is None, VALIDATOR.is_valid(document))

    def test_every_key_is_documented(self):
        page = (CONFIGS.parent / "docs" / "reference" / "configuration.md").read_text()
        for key in declared(SCHEMA):
            name = re.split(r"[.:]", key)[-1]
            self.assertRegex(page, rf"[`.]{re.escape(name)}`", key)
        blocks = re.findall(r"```json\n(.*?)```", page, re.DOTALL)
        self.assertGreaterEqual(len(blocks), 5)
        for block in blocks:
            with self.subTest(block):
                VALIDATOR.validate(json.loads(block))
                self.effective(json.loads(block))

    def at(self, document, path):
        value = self.effective(document)
        for key in path:
            value = value[key]
        return value

    def test_both_refuse_the_same_documents(self):
        for document in [
            [],
            {"unknown": 1},
            {"policy": {"type": "hogwild", "unknown": 1}},
            {"device": "cpu", "devices": ["cpu"]},
            {"device": "gpu"},
            {"devices": []},
            {"devices": ["cpu", "cpu"]},
            {"devices": ["auto"]},
            {"listen": []},
            {"listen": ["localhost:5500"]},
            {"daemons": ["tcp://a:1", "tcp://b:1"], "index": -1},
            {"daemons": "tcp://a:1", "index": 0},
            {"engine": {}},
            {"engine": {"endpoints": [], "prefix": "/psd"}},
            {"engine": {"endpoints": ["http://a:1"]}},
            {"engine": {"endpoints": ["http://a:1"], "prefix": "psd"}},
            {"engine": {"endpoints": ["http://a:1"], "prefix": "/psd/"}},
            {"engine": {"endpoints": ["http://a:1"], "prefix": "/p d"}},
            {"engine": {"endpoints": ["tcp://a:1"], "prefix": "/psd"}},
            {"engine": {"endpoints": ["http://a:1/v3"], "prefix": "/psd"}},
            {"engine": {"endpoints": ["http://a:1", "http://a:1"], "prefix": "/psd"}},
            {"engine": {"type": "zookeeper", "endpoints": ["http://a:1"], "prefix": "/psd"}},
            {"exit_when_done": 1},
            {"optimizer": {"type": "sgd", "betas": [0.9, 0.999]}},
            {"optimizer": {"type": "adam", "betas": [0.9]}},
            {"optimizer": {"schedule": {"type": "step"}}},
            {"model": {}},
            {"model": {"tensors": []}},
            {"model": {"tensors": [{"name": "w"}]}},
            {"model": {"tensors": [], "tables": []}},
            {"model": {"tables": [{"name": "user"}]}},
            {"model": {"tables": [{"name": "user", "dim": 4097}]}},
            {"model": {"tables": [{"name": "user", "dim": 4, "initial": {"type": "ones"}}]}},
            {"tables": [{}]},
            {"tables": [{"match": "a", "evict": {"by": "age"}}]},
            {"tables": [{"match": "a", "evict": {"by": "size"}}]},
            {"tables": [{"match": "a", "evict": {"by": "norm", "updates": 2}}]},
            {"tables": [{"match": "a", "max_rows": 9, "evict": {"by": "least_recent", "updates": 2}}]},
            {"tables": [{"match": "a", "admit": {}}]},
            {"tables": [{"match": "a", "admit": {"after_pushes": 2, "probability": 0.5}}]},
            {"tables": [{"match": "a", "admit": {"counters": 64, "probability": 0.5}}]},
            {"row_shards": 0},
            {"model": {"tensors": [{"name": "w", "shape": [0]}]}},
            {"model": {"file": "a", "tensors": [{"name": "w", "shape": [1]}]}},
            {"codecs": {"push": {"allowed": ["zip"]}}},
            {"codecs": {"push": {"allowed": []}}},
            {"codecs": {"pull": {"allowed": ["int8", "int8"]}}},
            {"codecs": {"pull": {"default": "topk"}}},
            {"$schema": 3},
            {"save": "a\0b"},
            {"listen": ["unix:///a\0b"]},
            {"auth": {"tokens": "a\0b"}},
            {"durability": {"type": "log", "path": "a\0b"}},
            *({"policy": {"type": type}} for type in ("diloco", "async_diloco")),
            {"limits": {"slice_bytes": 5000}},
            {"policy": {"type": "sync", "bound": 1}},
            {"policy": {"type": "sync", "aggregator": {"type": "mean", "trim": 1}}},
            {"policy": {"type": "sync", "on_timeout": "wait"}},
            {"policy": {"type": "sync", "staleness": {}}},
            {"policy": {"type": "hogwild", "delay_compensation": {"lambda": 1}}},
            {"policy": {"type": "hogwild", "clip": {"norm": 1}}},
            {"policy": {"type": "locked", "clip": {}}},
            {"policy": {"type": "locked", "clip": {"norm": 1, "value": 1}}},
            {"policy": {"type": "locked", "staleness": {"rate": "inverse", "a": 1}}},
            {"policy": {"type": "locked", "delay_compensation": {}}},
            {"policy": {"type": "allreduce", "timeout_ms": 99}},
            {"policy": {"type": "allreduce", "aggregator": "mean"}},
            {"policy": {"type": "allreduce", "staleness": {}}},
            {"policy": {"type": "easgd", "clip": {"value": 1}}},
            {"policy": {"type": "diloco", "clip": {"value": 1}}, "optimizer": {"type": "sgd"}},
            {"policy": {"type": "diloco", "grace_ms": "measured"}, "optimizer": {"type": "sgd"}},
            {"policy": {"type": "diloco", "late": "count"}, "optimizer": {"type": "sgd"}},
            {"policy": {"type": "diloco", "late": {}}, "optimizer": {"type": "sgd"}},
            {"policy": {"type": "diloco", "late": {"rate": 0}}, "optimizer": {"type": "sgd"}},
            {"policy": {"type": "async_diloco", "quorum": 2}, "optimizer": {"type": "sgd"}},
            {"policy": {"type": "async_diloco", "aggregator": "rda"}, "optimizer": {"type": "sgd"}},
            {"optimizer": {"type": "delayed_nesterov", "delay": 1.5}},
            {"optimizer": {"type": "delayed_nesterov", "delay": 0}},
            {"policy": {"type": "diloco", "inner": {"type": "adagrad"}}, "optimizer": {"type": "sgd"}},
            {"policy": {"type": "diloco", "inner": {"schedule": {"type": "cosine"}}}, "optimizer": {"type": "sgd"}},
            {"groups": [{}]},
            {"groups": [{"match": []}]},
            {"groups": [{"match": 1}]},
            {"groups": [{"match": "fc*", "policy": {"type": "lockd"}}]},
            {"durability": {"type": "checkpoint"}},
            {"durability": {"path": "saved"}},
            {"durability": {"type": "checkpoint", "path": "saved", "segment_bytes": 65536}},
            {"durability": {"type": "log", "path": "saved", "every_bytes": 1000}},
            {"durability": {"type": "log", "path": "saved", "every_bytes": "some"}},
        ]:
            with self.subTest(document):
                self.assertFalse(VALIDATOR.is_valid(document))
                _, error = check(document)
                self.assertEqual(1, len((error or "").splitlines()), error)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
