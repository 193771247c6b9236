#!/usr/bin/env python3
"""Generates the tables of docs/reference/configuration.md, between markers, and configs/psd.schema.json for editors from the JSON
Schema that `psd check --schema` prints.

Markers in the page: `<!-- keys: PATH … -->` a table of the keys of these objects, `<!-- live keys -->` and
`<!-- keys of one daemon -->` lists; each ends with `<!-- end -->`.
"""

import argparse
import json
import pathlib
import re
import subprocess
import textwrap

REPO = pathlib.Path(__file__).resolve().parent.parent
PAGE = REPO / "docs/reference/configuration.md"
SCHEMA_FILE = REPO / "configs/psd.schema.json"
MARKED = re.compile(r"(<!-- ((?:keys: [^>]+|live keys|keys of one daemon)) -->\n).*?(<!-- end -->)", re.DOTALL)
LINE = 140
WORDS_OF_A_CELL = 40
WITHOUT_NAME = ("properties", "oneOf", "items")


def compact(node, indent=""):
    """JSON with each value that fits on a line in one."""
    line = json.dumps(node, ensure_ascii=False)
    if len(line) + len(indent) <= LINE or not isinstance(node, (dict, list)):
        return line
    inner = indent + "  "
    if isinstance(node, list):
        return "[\n" + ",\n".join(inner + compact(each, inner) for each in node) + f"\n{indent}]"
    lines = [f"{inner}{json.dumps(key)}: {compact(value, inner)}" for key, value in node.items()]
    return "{\n" + ",\n".join(lines) + f"\n{indent}}}"


def shared(schema):
    """The schema with objects that occur several times, such as those of an optimizer, in $defs once."""
    counts, names, defs = {}, {}, {}

    def shareable(node):
        return isinstance(node, dict) and keys_below(node) and len(json.dumps(node)) > LINE

    def count(node):
        key = json.dumps(node)
        counts[key] = counts.get(key, 0) + 1
        if counts[key] == 1 or not shareable(node):
            for child in node.values() if isinstance(node, dict) else node if isinstance(node, list) else []:
                count(child)

    def share(node, path):
        if isinstance(node, list):
            return [share(each, path) for each in node]
        if not isinstance(node, dict):
            return node
        label = next((one["const"] for one in node.get("properties", {}).values() if isinstance(one, dict) and "const" in one), None)
        path = path + [label] if label else path
        key = json.dumps(node)
        below = {name: share(child, path + ([] if name in WITHOUT_NAME else [name])) for name, child in node.items()}
        if counts[key] == 1 or not shareable(node):
            return below
        if key not in names:
            names[key] = ".".join(path)
            defs[names[key]] = below
        return {"$ref": f"#/$defs/{names[key]}"}

    count(schema)
    return {**share(schema, []), "$defs": defs}


def power(number):
    """10⁶ and 2⁴⁰ for large powers, else the number."""
    digits = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
    whole = int(number) if number == int(number) else None
    if whole and whole >= 2**20 and whole & (whole - 1) == 0:
        return "2" + str(whole.bit_length() - 1).translate(digits)
    text = f"{number:.0e}" if number else "0"
    if text.startswith("1e") and float(text) == number and (number >= 1e6 or number < 1e-3):
        return "10" + str(int(text[2:])).translate(digits)
    return str(whole if whole is not None else number)


def bounds(schema):
    low = power(schema["minimum"]) if "minimum" in schema else f"above {power(schema['exclusiveMinimum'])}"
    if "maximum" not in schema and "exclusiveMaximum" not in schema:
        return f"of at least {low}"
    high = power(schema["maximum"]) if "maximum" in schema else f"below {power(schema['exclusiveMaximum'])}"
    return f"{low} … {high}"


def type_text(schema):
    if isinstance(schema.get("type"), list):
        return "string or list of strings"
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if choices:
        return ", ".join(f"`{json.dumps(choice)}`" for choice in choices)
    kind = schema.get("type")
    if kind in ("integer", "number"):
        whole = "integer" if kind == "integer" or schema.get("multipleOf") == 1 else "number"
        multiple = schema.get("multipleOf", 1)
        return f"{whole} {bounds(schema)}" + (f", a multiple of {multiple}" if multiple != 1 else "")
    if kind == "array":
        items = schema["items"]
        if items.get("type") == "number":
            return f"two numbers {bounds(items)}"
        if items.get("type") == "integer":
            return "list of integers" + (f" of at least {items['minimum']}" if "minimum" in items else "")
        if "enum" in items:
            return f"list of {type_text(items)}"
        if keys_below(schema):
            return "list of objects"
        return "list of addresses" if "://" in items.get("pattern", "") else "list of strings"
    if isinstance(schema.get("additionalProperties"), dict):
        return f"object of {type_text(schema['additionalProperties'])}"
    if keys_below(schema) or kind == "object":
        others = [one for one in schema.get("oneOf", []) if "properties" not in one]
        return " or ".join(["object"] + [type_text(other) for other in others if "title" not in other])
    return " or ".join(type_text(one) for one in schema.get("oneOf", schema.get("anyOf", []))) or kind


def default_text(name, schema, required):
    if required:
        return "required"
    if "default" not in schema:
        return "–"
    value = schema["default"]
    text = f"`{value:.15g}`".replace("e-0", "e-") if isinstance(value, float) else f"`{json.dumps(value, ensure_ascii=False)}`"
    if name.endswith("_bytes") and isinstance(value, int) and value >= 2**20:
        step = next(shift for shift in (30, 20) if value >= 2**shift)
        text += f" ({value >> step} {'GiB' if step == 30 else 'MiB'})"
    return text


def keys_below(schema):
    """[(alternative or None, object)] of the objects that a value may be, or the elements of a list."""
    if "items" in schema:
        return keys_below(schema["items"])
    if "properties" in schema:
        return [(None, schema)]
    found = []
    for option in schema.get("oneOf", []):
        if "properties" in option:
            names = [key["const"] for key in option["properties"].values() if "const" in key]
            found.append((names[0] if names else None, option))
    return found


def find(schema, path):
    """[(alternatives, schema)] of a key, each schema once."""
    found = [((), schema)]
    for name in path.split(".") if path else []:
        below = {}
        for labels, parent in found:
            for label, option in keys_below(parent):
                if name in option["properties"]:
                    child = option["properties"][name]
                    below.setdefault(json.dumps(child), (child, []))[1].extend([label] if label else list(labels))
        found = [(tuple(labels), child) for child, labels in below.values()]
    if not found:
        raise SystemExit(f"{PAGE.name}: no key '{path}'")
    return found


class Table:
    """The rows of the keys of some objects."""

    def __init__(self, page, marked):
        self.page = page
        self.marked = marked
        self.rows = {}

    def own_table(self, path):
        """The marker of the object's own table, if there is one."""
        return next((one for one in (path, path.removeprefix("groups.")) if one in self.marked), None)

    def meaning(self, path, schema):
        text = schema.get("description", "")
        own = self.own_table(path)
        if own and "." not in own and re.search(rf"^#+ {own}$", self.page, re.MULTILINE | re.IGNORECASE):
            text += f" [{own}](#{own})"
        return text

    def add(self, path, prefix, labels, schema, live=False, level=None):
        """Adds the keys of an object, which the alternatives `labels` have, of those in `level`."""
        options = keys_below(schema)
        level = [label for label, _ in options if label] or level or list(labels)
        for label, option in options:
            of = [label] if label else list(labels)
            for name, child in option["properties"].items():
                key = prefix + name
                if "const" in child:
                    self.add_choice(key, child, option, len(options), live)
                    continue
                self.add_row(path, key, name, child, (of, level), name in option.get("required", []), live)

    def add_row(self, path, key, name, child, alternatives, required, live):
        of, level = alternatives
        here = f"{path}.{name}" if path else name
        text, meaning = type_text(child), self.meaning(here, child)
        live = live or child.get("x-live", False)
        row = self.rows.setdefault((key, text, meaning), {"of": [], "level": set(), "defaults": {}, "live": live})
        row["level"].update(level)
        of_objects = text == "list of objects" or text.startswith("object") and (text == "object" or "default" not in child)
        default = "" if of_objects else default_text(name, child, required)
        row["of"].extend(label for label in of if label not in row["of"])
        row["defaults"].setdefault(default, []).extend(of)
        if keys_below(child) and not self.own_table(here):
            self.add(here, key + ("[]." if "items" in child else "."), of, child, live, level)

    def add_choice(self, key, child, option, count, live):
        title = option.get("title", "")
        row = self.rows.setdefault((key, "", child["description"]),
                                   {"of": [], "level": set(), "defaults": {}, "live": live or child.get("x-live", False), "choices": []})
        if child["const"] not in [choice for choice, _ in row["choices"]]:
            row["choices"].append((child["const"], title))
        if "default" in child:
            row["defaults"] = {f"`{json.dumps(child['default'])}`": []}
        elif len(row["choices"]) == count and not row["defaults"]:
            row["defaults"] = {"required": []}

    def text(self):
        lives = {row["live"] for row in self.rows.values()}
        with_of = any(set(row["of"]) != row["level"] for row in self.rows.values())
        with_live = len(lives) > 1
        head = ["key"] + ["of"] * with_of + ["type", "default"] + ["live"] * with_live + ["meaning"]
        lines, lists = ["| " + " | ".join(head) + " |", "|---" * len(head) + "|"], []
        for (key, kind, meaning), row in self.rows.items():
            if "choices" in row:
                kind, meaning, below = choices_text(key, meaning, row["choices"])
                lists += below
            defaults = list(row["defaults"])
            if len(defaults) > 1:
                defaults = [", ".join(of) + " " + text for text, of in row["defaults"].items()]
            of = "all" if set(row["of"]) == row["level"] else ", ".join(row["of"])
            cells = [f"`{key}`"] + [of] * with_of + [kind, "; ".join(defaults)]
            cells += ["yes" if row["live"] else "no"] * with_live + [meaning]
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        return "\n".join(lines + lists)


def choices_text(key, meaning, choices):
    """The type and the meaning of a key with choices, and the list below the table where the cell has no room for them."""
    kind = ", ".join(f"`{json.dumps(choice)}`" for choice, _ in choices)
    titles = [(choice, title.rstrip(".")) for choice, title in choices if title]
    inline = meaning + (" " + "; ".join(f"`{choice}`: {title}" for choice, title in titles) + "." if titles else "")
    if len(inline.split()) <= WORDS_OF_A_CELL:
        return kind, inline, []
    return "see below", meaning, ["", f"`{key}`:", "", *(f"- `{choice}`: {title}." for choice, title in titles)]


def live_keys(schema, path=""):
    """The paths of the keys that may change while the daemon runs, without those in them."""
    found = []
    for _, option in keys_below(schema):
        for name, child in option["properties"].items():
            here = f"{path}.{name}" if path else name
            below = [here] if child.get("x-live") else live_keys(child, here + "[]" if "items" in child else here)
            found += [key for key in below if key not in found]
    return found


def listed(keys):
    return textwrap.fill(", ".join(f"`{key}`" for key in keys), LINE, break_long_words=False, break_on_hyphens=False)


def page_with(schema, page):
    marked = {path for _, what, _ in MARKED.findall(page) if what.startswith("keys: ") for path in what.split()[1:]}

    def content(found):
        what = found[2]
        if what == "live keys":
            text = listed(live_keys(schema))
        elif what == "keys of one daemon":
            text = listed(name for name, key in schema["properties"].items() if "x-of-daemon" in key and name != "$schema")
        else:
            table = Table(page, marked)
            paths = what.split()[1:]
            for path in paths:
                path = "" if path == "top" else path
                nodes = find(schema, path)
                level = [label for labels, _ in nodes for label in labels]
                for labels, node in nodes:
                    table.add(path, path.split(".")[-1] + "." if len(paths) > 1 else "", labels, node, level=level)
            text = table.text()
        return f"{found[1]}{text}\n{found[3]}"

    return MARKED.sub(content, page)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0], allow_abbrev=False)
    parser.add_argument("psd", metavar="PSD", help="the program, as build/release/bin/psd")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a file differs")
    arguments = parser.parse_args()
    printed = subprocess.run([arguments.psd, "check", "--schema"], capture_output=True, text=True, timeout=60, check=True).stdout
    schema = json.loads(printed)
    page = PAGE.read_text(encoding="utf-8")
    differ = []
    for path, text in ((PAGE, page_with(schema, page)), (SCHEMA_FILE, compact(shared(schema)) + "\n")):
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        differ.append(str(path.relative_to(REPO)))
        if not arguments.check:
            path.write_text(text, encoding="utf-8")
    if arguments.check and differ:
        raise SystemExit(f"{', '.join(differ)}: out of date; run scripts/config_reference.py PSD")


if __name__ == "__main__":
    main()
