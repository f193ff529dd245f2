# SPDX-License-Identifier: Apache-2.0
"""Options shared by several commands, defined once as the fields of a dataclass."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, get_type_hints

Command = Callable[..., None]


def with_options(options: type) -> Callable[[Command], Command]:
    """Adds the fields of a dataclass as options to a command, which takes an instance as its first parameter.

    The command's own options come first in the help.
    """
    hints = get_type_hints(options, include_extras=True)
    shared = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in fields(options)
    ]

    def decorate(command: Command) -> Command:
        _, *own = inspect.signature(command).parameters.values()

        @wraps(command)
        def wrapper(**values: Any) -> None:
            instance = options(**{each.name: values.pop(each.name) for each in shared})
            command(instance, **values)

        parameters = [*(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own), *shared]
        wrapper.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
        wrapper.__annotations__ = {each.name: each.annotation for each in parameters}
        return wrapper

    return decorate
