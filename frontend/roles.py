"""The verbs of a state that say more than one thing: messages and scopes. What they append, `+=` takes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from . import api, ir


class Speaking:
    """Mixed into whatever `+=` appends to: the state of a run, and the one of a trace."""

    def __iadd__(self, value: Any) -> Any:
        raise NotImplementedError

    def system(self, expr: Any = None) -> Any:
        """Appends a system message; without `expr`, `with s.system():` encloses one."""
        return self._message("system", expr)

    def user(self, expr: Any = None) -> Any:
        return self._message("user", expr)

    def assistant(self, expr: Any = None) -> Any:
        return self._message("assistant", expr)

    def var_scope(self, name: str) -> Any:
        """`with s.var_scope(name):` - all text that is appended inside becomes `s[name]`."""
        return self._between(ir.ScopeBegin(name), ir.ScopeEnd(name))

    def _message(self, role: str, expr: Any) -> Any:
        if expr is None:
            return self._between(ir.RoleBegin(role), ir.RoleEnd(role))
        self.__iadd__(api.message(role, expr))
        return None

    @contextmanager
    def _between(self, begin: ir.Expr, end: ir.Expr) -> Iterator[Any]:
        self.__iadd__(begin)
        yield self  # after an exception in the body the end is not said: the run is over
        self.__iadd__(end)
