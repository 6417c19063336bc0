"""A jinja2 sandbox in which a template can neither run for ever nor eat the memory.

Templates come with model files, so they are foreign code. jinja2's ImmutableSandboxedEnvironment keeps them from
reaching Python; this subclass bounds what they may spend. Every loop turn, macro call and function call counts a step
against a budget and a deadline, everything printed (also into `set` blocks and macros) counts against an output
budget, and every operation that can make a value much larger than its inputs is checked before it runs.

What is counted is written into the syntax tree before it is compiled: a call at the head of each loop and macro body,
and one around constant text, slices and concatenations. Constant folding is off, so nothing runs outside the budget.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from itertools import islice
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_SECONDS = 5.0
MAX_STEPS = 1_000_000
MAX_SYNTAX = 50_000
"""Pieces of syntax in a template; compiling takes about a second for these."""
MAX_CHARS = 1 << 24
"""Of output in all, and of any single value. A million tokens are about a quarter of it."""
MAX_WORK = 1 << 28
"""Characters of all values made on the way, so that many large ones cannot add up."""
MAX_ITEMS = 1_000_000
MAX_BITS = 1 << 13

_NODE_CHARS = 16
"""What a number, a bracket or a key counts for when nested data is measured."""

_METHODS = frozenset({"center", "expandtabs", "join", "ljust", "replace", "rjust", "translate", "zfill"})
_FILTERS = frozenset({"batch", "center", "format", "indent", "join", "pprint", "replace", "slice", "string", "sum"})
_FILTERS |= {"tojson", "urlize", "wordwrap", "xmlattr"}
_WIDTHS = frozenset(
    {"batch", "center", "expandtabs", "indent", "ljust", "rjust", "slice", "tojson", "wordwrap", "zfill"}
)
_WIDE_FIELD = re.compile(r"%(\(\w*\))?[-+ #0]*\d{5}|%[^a-zA-Z%]*\.\d{5}|\{[^{}]*:[^{}]*\d{5}")
_GIVEN_WIDTH = re.compile(r"%[^a-zA-Z%]*\*|\{[^{}]*:[^{}]*\{")


class BudgetError(jinja2.TemplateError):
    """The template does too much."""


class Budget:
    """What one rendering may still spend."""

    def __init__(self) -> None:
        self.steps, self.chars, self.work = MAX_STEPS, MAX_CHARS, MAX_WORK
        self.deadline = time.monotonic() + MAX_SECONDS

    def step(self) -> None:
        """Count one step of work."""
        self.steps -= 1
        if self.steps < 0:
            raise BudgetError(f"it takes more than {MAX_STEPS:,} steps")
        if not self.steps & 0xFF and time.monotonic() > self.deadline:
            raise BudgetError(f"it takes longer than {MAX_SECONDS:g} seconds")

    def make(self, chars: int) -> None:
        """Count what an operation made."""
        self.work -= chars
        if self.work < 0:
            raise BudgetError(f"it makes more than {MAX_WORK:,} characters on the way")

    def emit(self, chars: int) -> None:
        """Count output."""
        self.chars -= chars
        if self.chars < 0:
            raise BudgetError(f"it writes more than {MAX_CHARS:,} characters")


_BUDGET: ContextVar[Budget | None] = ContextVar("forerun_template_budget", default=None)


@contextmanager
def budget() -> Iterator[Budget]:
    """A fresh budget for what is rendered inside."""
    token = _BUDGET.set(made := Budget())
    try:
        yield made
    finally:
        _BUDGET.reset(token)


def _step() -> None:
    if (current := _BUDGET.get()) is not None:
        current.step()


def _made(value: Any) -> Any:
    """Charge for a new value; only its own size, since what it holds was charged when it was made."""
    if isinstance(value, (str, bytes, list, tuple, dict)) and (current := _BUDGET.get()) is not None:
        current.make(len(value) * (1 if isinstance(value, (str, bytes)) else _NODE_CHARS))
    return value


def measure(value: Any, limit: int = MAX_CHARS) -> int:
    """Roughly how many characters `value` prints as. Stops with BudgetError at `limit`, so that data which contains
    itself many times over is found out before it is printed."""
    total, pending = 0, [value]
    while pending:
        one = pending.pop()
        if isinstance(one, (str, bytes)):
            total += len(one)
        elif isinstance(one, Mapping):
            total += _NODE_CHARS
            pending.extend(one.keys())
            pending.extend(one.values())
        elif isinstance(one, (list, tuple, set, frozenset)):
            total += _NODE_CHARS
            pending.extend(one)
        else:
            total += _NODE_CHARS
        if total + len(pending) > limit:
            raise BudgetError(f"it makes a value of more than {limit:,} characters")
    return total


def _check_size(size: int, limit: int = MAX_CHARS) -> None:
    if size > limit:
        raise BudgetError(f"it makes a value of size {size:,}, more than {limit:,}")


def _check_widths(values: Iterable[Any]) -> None:
    """Widths and counts: a large one makes a large value out of nothing."""
    for value in values:
        if isinstance(value, int) and abs(value) > MAX_ITEMS:
            raise BudgetError(f"it uses {value:,} as a width or a count")


def _check_format(template: str, args: tuple[Any, ...]) -> None:
    """`%` and `str.format`: no wide fields, and every argument may stand at every field."""
    if _WIDE_FIELD.search(template):
        raise BudgetError("it formats with a field wider than 9,999")
    size = measure(args)
    if _GIVEN_WIDTH.search(template):
        _check_widths(args)
        size += max((abs(value) for value in args if isinstance(value, int)), default=0)
    _check_size(len(template) + size * (template.count("%") + template.count("{")))


def _check_growth(name: str, value: Any, args: tuple[Any, ...]) -> None:
    """Refuse the filter or string method `name` on `value` if its result may be too large."""
    if name in _WIDTHS:
        _check_widths(args)
    numbers = [abs(one) for one in args if isinstance(one, int)]
    longest = max((len(one) for one in args if isinstance(one, (str, bytes))), default=0)
    if name == "translate":
        raise BudgetError("it uses str.translate, which is not served")
    if name == "format":
        _check_format(str(value), args)
    elif name == "replace":
        text = value if isinstance(value, str) else str(value)
        hits = text.count(args[0]) if args and isinstance(args[0], str) else len(text)
        _check_size(len(text) + hits * longest)
    elif name == "join":
        _check_size(measure(value) + (len(value) if hasattr(value, "__len__") else 0) * longest)
    elif name == "sum" and isinstance(value, (list, tuple)):
        lengths = [len(one) for one in value if isinstance(one, (list, tuple))]
        _check_size(len(lengths) * sum(lengths))
    elif name in ("indent", "wordwrap", "expandtabs", "tojson"):
        size = measure(value)
        breaks = value.count("\n") + value.count("\t") if isinstance(value, str) else size // _NODE_CHARS
        _check_size(size * (1 + longest) + (1 + breaks) * max(numbers, default=0))
    else:
        measure(value)


class BoundedEnvironment(ImmutableSandboxedEnvironment):
    """See the module. Templates are made with `bounded_template` only."""

    intercepted_binops = frozenset({"+", "*", "**", "%"})

    def __init__(self, filters: Mapping[str, Callable[..., Any]], names: Mapping[str, Any], **settings: Any) -> None:
        super().__init__(optimized=False, finalize=_finalize, **settings)
        self.filters |= filters
        self.globals |= names
        self.globals.pop("lipsum", None)
        self.filters |= {name: _guarded_filter(name, function) for name, function in self.filters.items()}

    def bounded_template(self, source: str) -> jinja2.Template:
        """Compile `source` with the counting calls in it. Raises TemplateSyntaxError or BudgetError."""
        if sum(1 for _ in islice(self.lex(source), MAX_SYNTAX + 1)) > MAX_SYNTAX:
            raise BudgetError(f"it has more than {MAX_SYNTAX:,} pieces of syntax")
        return self.from_string(_Counting().visit(self.parse(source)).set_environment(self))

    def count_step(self) -> None:
        """Called at the head of loop and macro bodies; `call` has counted already."""

    def text(self, value: str) -> str:
        """Constant text, given out at run time so that it is counted where it is printed."""
        return value

    def checked(self, value: Any) -> Any:
        """An operand of `~`; `call` charges for it, and so for its part of the result."""
        measure(value)
        return value

    def made(self, value: Any) -> Any:
        """A slice; `call` charges for it."""
        return value

    def call(__self, __context: Any, __callable: Any, *args: Any, **kwargs: Any) -> Any:
        """Every call in a template passes here."""
        _step()
        owner, name = getattr(__callable, "__self__", None), getattr(__callable, "__name__", "")
        if name in _METHODS and isinstance(owner, (str, bytes)):
            if name == "join" and args:  # the method joins its argument, the filter its value
                args = (list(args[0]), *args[1:])
                _check_growth(name, args[0], (owner,))
            else:
                _check_growth(name, owner, args)
        return _made(super().call(__context, __callable, *args, **kwargs))

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` and `str.format_map` reach templates through this."""
        inner = super().wrap_str_format(value)
        if inner is None:
            return None

        def format_checked(*args: Any, **kwargs: Any) -> str:
            _check_format(value.__self__, (*args, *kwargs.values()))
            return inner(*args, **kwargs)

        return format_checked

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        """The arithmetic that can grow values."""
        _step()
        if operator == "%" and isinstance(left, (str, bytes)):
            _check_format(str(left), right if isinstance(right, tuple) else (right,))
        elif operator == "+" and hasattr(left, "__len__") and hasattr(right, "__len__"):
            _check_size(len(left) + len(right), MAX_CHARS if isinstance(left, str) else MAX_ITEMS)
        elif operator == "*":
            for one, other in ((left, right), (right, left)):
                if hasattr(one, "__len__") and isinstance(other, int):
                    _check_size(len(one) * max(other, 0), MAX_CHARS if isinstance(one, str) else MAX_ITEMS)
            if isinstance(left, int) and isinstance(right, int):
                _check_size(left.bit_length() + right.bit_length(), MAX_BITS)
        elif operator == "**" and isinstance(left, int) and isinstance(right, int):
            _check_size(left.bit_length() * abs(right), MAX_BITS)
        return _made(super().call_binop(context, operator, left, right))


@jinja2.pass_context
def _finalize(context: Any, value: Any) -> Any:
    """Everything printed passes here."""
    if (current := _BUDGET.get()) is not None:
        current.emit(measure(value))
    return value


def _guarded_filter(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """`function` with its growth checked; jinja2's own marks (pass_environment and so on) stay on."""
    skip = 1 if hasattr(function, "jinja_pass_arg") else 0
    grows = name in _FILTERS

    @wraps(function)
    def checked(*args: Any, **kwargs: Any) -> Any:
        _step()
        if grows and len(args) > skip:
            value = args[skip]
            if name in ("join", "sum") and isinstance(value, Iterator):
                value = list(value)
                args = (*args[:skip], value, *args[skip + 1 :])
            _check_growth(name, value, (*args[skip + 1 :], *kwargs.values()))
        return _made(function(*args, **kwargs))

    return checked


class _Counting(NodeTransformer):
    """Puts calls of the environment's counting methods into a syntax tree."""

    def visit_For(self, node: Any) -> Any:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(_call("count_step"), lineno=node.lineno))
        return node

    visit_Macro = visit_CallBlock = visit_For

    def visit_TemplateData(self, node: nodes.TemplateData) -> nodes.Expr:
        return _call("text", nodes.Const(node.data))

    def visit_Concat(self, node: nodes.Concat) -> nodes.Expr:
        self.generic_visit(node)
        node.nodes = [_call("checked", one) for one in node.nodes]
        return node

    def visit_Getitem(self, node: nodes.Getitem) -> nodes.Expr:
        self.generic_visit(node)
        return _call("made", node) if isinstance(node.arg, nodes.Slice) else node


def _call(name: str, *args: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(name), list(args), [], None, None)
