"""Options that several commands have, from one dataclass: its fields are the options, its value is what was chosen."""

import inspect
from collections.abc import Callable
from dataclasses import fields
from functools import wraps
from typing import Any, get_type_hints

Command = Callable[..., None]


def taking(options: type) -> Callable[[Command], Command]:
    """For a command whose first parameter is such a value; its own options are shown before the shared ones."""
    hints = get_type_hints(options, include_extras=True)
    shared = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in fields(options)
    ]

    def decorate(command: Command) -> Command:
        _, *own = inspect.signature(command).parameters.values()

        @wraps(command)
        def called(**given: Any) -> None:
            chosen = options(**{each.name: given.pop(each.name) for each in shared})
            command(chosen, **given)

        every = [*(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own), *shared]
        called.__signature__ = inspect.Signature(every)  # type: ignore[attr-defined]
        called.__annotations__ = {each.name: each.annotation for each in every}
        return called

    return decorate
