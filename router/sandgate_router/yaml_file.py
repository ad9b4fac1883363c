"""YAML files of settings, read strictly, and told about without a word of what they hold.

Keys, callers and pools stand in such files, and secrets with them. So a fault names the file
and the place, and quotes nothing: the parser's own words show the line that it stumbled over,
and with it perhaps a secret. Whatever is wrong with a file is a `BadConfig`, since whoever
follows one must go on with what was read before.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from sandgate_router.config import BadConfig

Stamp = tuple[int, int, int]
"""What changes with a file; a Kubernetes Secret changes by another link."""

_PLAIN = re.compile(r"[a-z_]{1,32}")
"""Names that a fault may show: a slip of a member's name looks so, and no key in base64 does."""


def read_yaml(path: Path, *, kind: str) -> object:
    """Return what a file holds.

    Args:
        path: the file.
        kind: what its faults call it: keys, callers, pools.

    Raises:
        BadConfig: with its one fault.
    """
    file = f"{kind} file {path}"
    try:
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise BadConfig([f"{file} cannot be read: it is no text in UTF-8"]) from None
    except OSError as error:
        raise BadConfig([f"{file} cannot be read: {error.strerror}"]) from error
    try:
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except _Misuse as error:
        raise BadConfig([f"{file}{_place(error)}: {error.problem}"]) from None
    except yaml.YAMLError as error:
        raise BadConfig([f"{file}{_place(error)}: it is no YAML there"]) from None
    except RecursionError:
        raise BadConfig([f"{file} is nested too deeply"]) from None
    except Exception:  # noqa: BLE001 - PyYAML's own slips, as for "\UFFFFFFFF": ValueError and more
        raise BadConfig([f"{file} is no YAML"]) from None


def read_stamp(path: Path) -> Stamp | None:
    """Return what tells this version of a file from others; None while there is none."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_mtime_ns, status.st_ino, status.st_size


def shown(name: object) -> str:
    """Return the name of an unknown member for a fault, unless it may be a secret."""
    plain = isinstance(name, str) and _PLAIN.fullmatch(name) is not None
    return repr(name) if plain else "what is no plain word"


class _Misuse(yaml.MarkedYAMLError):
    """What the parser would let pass, or trip over; its words quote nothing."""


class _StrictLoader(yaml.SafeLoader):
    """Refuses a member that comes twice: of two lists of rights a reader might see the other."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # Here, and not where it becomes a dict: by then `<<` has brought in what may be repeated.
        node = super().compose_mapping_node(anchor)
        seen = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and (name := (key.tag, key.value)) in seen:
                raise _Misuse(problem="a member comes twice", problem_mark=key.start_mark)
            if isinstance(key, yaml.ScalarNode):
                seen.add(name)
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        try:
            return super().construct_object(node, deep)
        except (ValueError, LookupError, AttributeError, ArithmeticError):
            # 2026-11-31, `0b_`, `!!int ""`, `!!bool maybe`, `!!timestamp soon`
            problem = "a date, a number or the like that there is not; put text in quotes"
            raise _Misuse(problem=problem, problem_mark=node.start_mark) from None


def _place(error: yaml.YAMLError) -> str:
    mark = getattr(error, "problem_mark", None)
    return "" if mark is None else f", line {mark.line + 1}, column {mark.column + 1}"
