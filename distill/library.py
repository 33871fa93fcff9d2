"""Small functions to quote: those of Python's own library, real code with real documentation, wherever this runs."""

import importlib
import inspect
from functools import cache

from distill.halves import Half

#: Most lines and characters of a function that a prompt quotes.
_MAX_LINES, _MAX_CHARACTERS = 16, 700

_MODULES = (
    *("argparse", "ast", "bisect", "calendar", "cmd", "codecs", "colorsys", "configparser", "contextlib"),
    *("copy", "csv", "dataclasses", "difflib", "enum", "filecmp", "fnmatch", "fractions", "functools"),
    *("getopt", "glob", "graphlib", "gzip", "heapq", "html", "imaplib", "inspect", "ipaddress"),
    *("json.decoder", "json.encoder", "keyword", "linecache", "locale", "logging", "mimetypes", "numbers"),
    *("operator", "optparse", "os", "pathlib", "posixpath", "pprint", "queue", "random", "reprlib", "sched"),
    *("shelve", "shlex", "shutil", "socketserver", "statistics", "string", "tarfile", "tempfile", "textwrap"),
    *("threading", "timeit", "tokenize", "traceback", "types", "urllib.parse", "urllib.request", "uuid"),
    *("warnings", "weakref", "zipfile"),
)


def function(rng: Half) -> str:
    """The source of a small function."""
    return next(filter(rng.owns, iter(lambda: rng.choice(_functions()), "")))


def documentation(rng: Half) -> str:
    """What a small function's documentation says."""
    return next(filter(rng.owns, iter(lambda: rng.choice(_documentation()), "")))


@cache
def _members() -> tuple[tuple[str, str], ...]:
    """(source, documentation) of the library's small functions and methods, always in the same order."""
    found = {}
    for name in _MODULES:
        module = importlib.import_module(name)
        for holder in (module, *(value for _, value in inspect.getmembers(module, inspect.isclass))):
            for _, value in inspect.getmembers(holder, inspect.isfunction):
                if value.__module__ == module.__name__:
                    found[value.__module__, value.__qualname__] = value
    return tuple((_source(value), inspect.getdoc(value) or "") for _, value in sorted(found.items()))


def _source(value: object) -> str:
    try:
        return inspect.cleandoc("\n" + inspect.getsource(value))  # type: ignore[arg-type]
    except (OSError, TypeError):  # written in C, or made while running
        return ""


@cache
def _functions() -> tuple[str, ...]:
    return tuple(s for s, _ in _members() if 3 < s.count("\n") <= _MAX_LINES and len(s) <= _MAX_CHARACTERS)


@cache
def _documentation() -> tuple[str, ...]:
    return tuple(" ".join(d.split()) for _, d in _members() if 80 < len(d) <= _MAX_CHARACTERS)
