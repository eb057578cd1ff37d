"""YAML to plain values, safely: no objects, no repeated keys, bounded expansion of aliases, line numbers kept."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import msgspec
import yaml

from kvrelease.workload.place import Place, quoted

# A request body is flat; the bound keeps recursion, ours and the parser's, far from its limit.
MAX_YAML_NESTING = 100
# Aliases written out: a nine-line "billion laughs" exceeds this at once, a system prompt shared by alias never does.
MAX_EXPANDED_CHARACTERS = 32 * 1024 * 1024
NODE_CHARACTERS = 16  # what one node counts for beside its text: a million of `x` costs more than a megabyte of prose

# libyaml's parser reads a megabyte in about a tenth of the pure one's time, and is in every PyYAML wheel.
_SafeLoader: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class YamlDocument(msgspec.Struct, frozen=True, kw_only=True):
    """One parsed document.

    Attributes:
        value: plain maps, lists, text, numbers (dates too, which callers refuse); None for an empty document.
        entry_lines: [entries of `prompts:`] 1-based lines; empty when there is no such list.
    """

    value: object
    entry_lines: tuple[int, ...]


class _StrictLoader(_SafeLoader):  # type: ignore[misc,valid-type]  # chosen at import
    """The safe loader, which also refuses a key that stands twice in one map."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode):
                name = (key.tag, key.value)
                if name in seen:
                    raise yaml.constructor.ConstructorError(
                        None, None, f"the key {quoted(key.value)} stands twice in one map", key.start_mark
                    )
                seen.add(name)
        result: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        return result


def parse_yaml(text: str, *, place: Place) -> YamlDocument:
    """The one document in `text`.

    Raises:
        PromptSetError: not YAML, several documents, unsafe tags, repeated keys, deep nesting, or aliases that expand
            beyond the bound.
    """
    loader: Any = None
    try:
        _refuse_deep_nesting(text, place=place)
        loader = _StrictLoader(text)
        root = loader.get_single_node()
        if root is None:
            return YamlDocument(value=None, entry_lines=())
        _Expansion(place).measure(root)
        return YamlDocument(value=loader.construct_document(root), entry_lines=_entry_lines(root))
    except yaml.YAMLError as error:
        raise place.error(f"it is not acceptable YAML ({_problem(error)})", hint=_yaml_hint(error)) from error
    except (ValueError, RecursionError) as error:
        # Such as `2024-13-45`, which looks like a date and is none.
        raise place.error(
            f"a value in it cannot be read as YAML ({type(error).__name__})", hint="put dates and odd numbers in quotes"
        ) from error
    finally:
        if loader is not None:
            loader.dispose()


def _refuse_deep_nesting(text: str, *, place: Place) -> None:
    """Stops before the recursive composer meets deep nesting; events come one by one and need no stack."""
    depth = 0
    for event in yaml.parse(text, Loader=_SafeLoader):
        if isinstance(event, yaml.CollectionStartEvent):
            depth += 1
            if depth > MAX_YAML_NESTING:
                mark = event.start_mark
                line = mark.line + 1 if mark is not None else None
                raise msgspec.structs.replace(place, line=line).error(f"nested deeper than {MAX_YAML_NESTING} levels")
        elif isinstance(event, yaml.CollectionEndEvent):
            depth -= 1


class _Expansion:
    """Measures a node graph as if every alias were written out, visiting each node once."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._sizes: dict[int, int | None] = {}

    def measure(self, node: yaml.Node) -> int:
        key = id(node)
        if key in self._sizes:
            size = self._sizes[key]
            if size is None:
                raise self._at(node).error("an alias refers to what contains it", hint="write the text out")
            return size
        self._sizes[key] = None
        if isinstance(node, yaml.ScalarNode):
            size = NODE_CHARACTERS + len(node.value)
        elif isinstance(node, yaml.MappingNode):
            size = NODE_CHARACTERS + sum(self.measure(part) for pair in node.value for part in pair)
        else:
            size = NODE_CHARACTERS + sum(self.measure(part) for part in node.value)
        if size > MAX_EXPANDED_CHARACTERS:
            raise self._at(node).error(
                f"with its aliases written out the file exceeds {MAX_EXPANDED_CHARACTERS} characters",
                hint="share text under `systems:` or `openings:` instead of nesting aliases",
            )
        self._sizes[key] = size
        return size

    def _at(self, node: yaml.Node) -> Place:
        return msgspec.structs.replace(self._place, line=node.start_mark.line + 1)


def _entry_lines(root: yaml.Node) -> tuple[int, ...]:
    if isinstance(root, yaml.MappingNode):
        for key, value in root.value:
            if isinstance(key, yaml.ScalarNode) and key.value == "prompts" and isinstance(value, yaml.SequenceNode):
                return tuple(item.start_mark.line + 1 for item in value.value)
    return ()


def _problem(error: yaml.YAMLError) -> str:
    """The parser's own words and the line; never the text around it."""
    if isinstance(error, yaml.MarkedYAMLError):
        mark = error.problem_mark or error.context_mark
        line = f"line {mark.line + 1}, column {mark.column + 1}: " if mark is not None else ""
        return line + (error.problem or error.context or "malformed")[:120]
    if isinstance(error, yaml.reader.ReaderError):
        return f"character {error.position + 1} is not allowed in YAML"
    return "malformed"


def _yaml_hint(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.constructor.ConstructorError) and "tag" in (error.problem or ""):
        return "tags such as !!python/… are never followed; write plain text, numbers, lists and maps"
    return "indent with spaces, and put text with a colon or a # in quotes or after `|-`"
