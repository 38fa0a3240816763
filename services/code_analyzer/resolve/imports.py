"""Imports followed: what of the job's own modules is known by which name, and what stands for a library."""

from __future__ import annotations

import ast

from schedmate.services.code_analyzer.resolve.calls import Calls
from schedmate.services.code_analyzer.resolve.values import (
    External,
    Scope,
    V,
)


class Imports(Calls):
    """Follows imports."""

    # --- imports -----------------------------------------------------------------------------------------------------

    def import_(self, node: ast.Import, scope: Scope) -> None:
        """Follow `import a.b as c`."""
        for alias in node.names:
            self.imports.setdefault(alias.name, self.place(scope, node))
            whole = self._module_value(alias.name, scope)
            if alias.asname or "." not in alias.name:
                scope.names[alias.asname or alias.name] = whole
                continue
            top = alias.name.split(".", 1)[0]
            if isinstance(whole.data, Scope):
                scope.names[top] = V(_package(alias.name.split(".")[1:], whole.data))
            else:
                scope.names.setdefault(top, V(External(top)))

    def _module_value(self, name: str, scope: Scope, level: int = 0) -> V:
        path = self.module_file(name, scope, level)
        found = self.module(path) if path is not None else None
        return V(found) if found is not None else V(External(name or "."))

    def import_from(self, node: ast.ImportFrom, scope: Scope) -> None:
        """Follow `from a import b`."""
        name = node.module or ""
        if not node.level:
            self.imports.setdefault(name, self.place(scope, node))
        path = self.module_file(name, scope, node.level)
        module = self.module(path) if path is not None else None
        for alias in node.names:
            if alias.name == "*":
                if module is not None:
                    scope.names.update({k: v for k, v in module.names.items() if not k.startswith("_")})
                else:
                    self.stars.setdefault(id(scope.module()), []).append(name)
                continue
            value = module.names.get(alias.name) if module is not None else None
            if value is None:
                inner = f"{name}.{alias.name}" if name else alias.name
                value = self._module_value(inner, scope, node.level)
            scope.names[alias.asname or alias.name] = value


def _package(parts: list[str], module: Scope) -> Scope:
    """Return the scope by which `import a.b.c` is reached from `a`."""
    scope = module
    for part in reversed(parts):
        scope = Scope(module.file, {part: V(scope)})
    return scope
