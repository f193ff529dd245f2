# SPDX-License-Identifier: Apache-2.0
"""polyvox serve: the HTTP server."""

import inspect
import logging
import os
import socket
import sys
from contextlib import ExitStack, closing, suppress
from functools import partial
from ipaddress import ip_address
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args, get_origin

import typer
from pydantic.fields import FieldInfo

from polyvox.cli.terminal import console, exit_code
from polyvox.cli.thinker_process import thinker_process
from polyvox.engine.capacity import describe_capacity, find_limit
from polyvox.errors import NOT_SHOWN, InvalidRequest, PolyvoxError, VoiceLibraryError, how_to_install
from polyvox.progress import ProgressBar, ProgressLog, progress_display
from polyvox.server.settings import BACKLOG, Settings, section_of
from polyvox.server.settings_sources import find_log_format, load_settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from polyvox.engine.interface import InProcessEngine
    from polyvox.ipc.process import StartedEngine
    from polyvox.models.info import ModelInfo

log = logging.getLogger(__name__)

Config = Annotated[Path | None, typer.Option(help="YAML file with any of these settings. Environment: POLYVOX_CONFIG.")]

OTHER_FLAGS = {"model": ("-m",), "memory_gb": ("--memory",)}  # by setting


def serve(config: Config = None, **flags: Any) -> None:
    """Start the server. It implements the speech APIs of OpenAI, ElevenLabs and vLLM-Omni.

    Every option can also be set in the environment (POLYVOX_PORT for --port) or in a YAML file (--config).
    """
    try:
        _run(flags, config)
    except PolyvoxError as error:
        if find_log_format(flags, config) != "json":
            raise
        from polyvox.server.logs import set_up_logs

        set_up_logs(Settings(log_format="json"))
        log.critical("server failed", extra={"error": str(error)})
        raise typer.Exit(exit_code(error)) from None


def _run(flags: dict[str, Any], config: Path | None) -> None:
    from polyvox.server.logs import set_up_logs

    settings = load_settings(flags, config)
    # Errors end the command before anything is started.
    if settings.model is not None:
        from polyvox.models.hub import find_local

        find_local(settings.model)
    if settings.lexicon is not None:
        from polyvox.text import load_lexicon

        load_lexicon(settings.lexicon)
    if settings.ray:
        set_up_logs(settings)
        _serve_on_ray(settings)
        return
    with ExitStack() as stack:
        listener, wyoming = stack.enter_context(_bind(settings.host, settings.port)), None
        set_up_logs(settings)
        if settings.wyoming_address is not None:
            wyoming = stack.enter_context(_bind(*settings.wyoming_address, "wyoming"))
        if settings.zeroconf and wyoming is not None:
            from polyvox.server.wyoming.announcement import announced

            stack.enter_context(announced(wyoming))
        if settings.log_format == "json":
            log.info("settings", extra={"settings": settings.shown_values()})
        else:
            console.print("Settings:\n" + settings.to_yaml(), soft_wrap=True)
        with thinker_process(settings) as settings:
            _serve(settings, listener, wyoming)


def _parameter(name: str, field: FieldInfo) -> inspect.Parameter:
    """The option of a setting. Values stay strings, which the settings validate; a list is separated by commas."""
    is_bool = bool in {field.annotation, *get_args(field.annotation)}
    flag = "--" + name.replace("_", "-")
    names = [f"{flag}/--no-{flag.removeprefix('--')}" if is_bool else flag, *OTHER_FLAGS.get(name, ())]
    option = typer.Option(
        *names,
        help=f"{field.description}{_describe_default(field.default)}",
        metavar=None if is_bool else _metavar(field.annotation),
        rich_help_panel=section_of(name),
        show_default=False,
    )
    kind: Any = Annotated[bool | None if is_bool else str | None, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)


def _metavar(annotation: Any) -> str:
    """The values of a setting in the help: the allowed ones where they are few, else their type."""
    origin = get_origin(annotation)
    if origin is Literal:
        return "|".join(get_args(annotation))
    if origin in (list, dict):
        return "TEXT,…" if origin is list else "NAME=NAME,…"
    types = {annotation, *get_args(annotation)}
    return "INTEGER" if int in types else "NUMBER" if float in types else "TEXT"


def _describe_default(default: Any) -> str:
    if default is False or default in (None, [], {}, ""):
        return ""
    shown = (
        ",".join(default) if isinstance(default, list) else f"{default:g}" if isinstance(default, float) else default
    )
    return f" Default: {shown}."


# Typer reads the options from the signature: one for each setting.
serve.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
    [
        *(_parameter(name, field) for name, field in Settings.model_fields.items()),
        inspect.Parameter("config", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=Config),
    ]
)
serve.__annotations__ = {name: each.annotation for name, each in inspect.signature(serve).parameters.items()}


def _serve_on_ray(settings: Settings) -> None:
    try:
        from polyvox.ray.command import serve_on_ray
    except ImportError as error:
        requirement = f"requires the package {error.name}: {how_to_install('ray')}"
        raise InvalidRequest("ray", NOT_SHOWN, requirement) from None
    serve_on_ray(settings)


def _serve(settings: Settings, listener: socket.socket, wyoming: socket.socket | None) -> None:
    from polyvox.server import engine_builder
    from polyvox.server.replica_devices import resolve_replicas

    gpus = resolve_replicas(settings)
    if settings.workers == 0:
        _serve_with_local_engine(settings, listener, wyoming)
    elif len(gpus) == 1:
        serve_with_engine_processes(settings, listener, [partial(engine_builder.build_engine, settings)], wyoming)
    else:
        builders = [partial(engine_builder.build_engine, settings, replica, gpu) for replica, gpu in enumerate(gpus)]
        serve_with_engine_processes(settings, listener, builders, wyoming)


def _serve_with_local_engine(settings: Settings, listener: socket.socket, wyoming: socket.socket | None) -> None:
    """Serve in this process until a signal stops the server. Raise the error if the engine cannot start."""
    from polyvox.engine.restarting_engine import RestartingEngine
    from polyvox.server.engine_builder import LocalEngineBuilder
    from polyvox.server.server_process import connect_local, run_server

    display = _show_start(settings, listener)

    def on_started(engine: "InProcessEngine", seconds: dict[str, float]) -> None:
        display.close()
        _print_summary(settings, listener, engine.info(), engine.stats(), seconds)

    builder = LocalEngineBuilder(settings)
    with closing(RestartingEngine(builder, settings.restart_policy(), display, on_started)) as engine:
        connect = connect_local(engine, engine.status)
        run_server(connect, settings, listener, engine_failed=engine.start_failed, wyoming=wyoming)
        display.close()
        engine.check()
    if not engine.stopped:  # a start in progress; a regular exit would abort in it
        sys.stderr.flush()
        os._exit(0)


def serve_with_engine_processes(
    settings: Settings,
    listener: socket.socket,
    builders: "Sequence[Callable[[], InProcessEngine]]",
    wyoming: socket.socket | None = None,
) -> None:
    """Serve until a signal stops the server. Raise the error if no engine can start.

    builders: one for each replica, called in its process; must be picklable.
    """
    from polyvox.ipc.process import EngineProcessConfig
    from polyvox.ipc.replica_processes import ReplicaProcesses

    display = _show_start(settings, listener)

    def on_started(started: "StartedEngine", seconds: dict[str, float]) -> None:
        display.close()
        _print_summary(settings, listener, started.info, started.stats, seconds, len(builders))

    config = EngineProcessConfig(restarts=settings.restart_policy(), drain_timeout=settings.drain_timeout)
    # They start while this process imports the server.
    with ReplicaProcesses(builders, config, on_progress=display, on_started=on_started) as processes:
        from polyvox.server.server_process import connect_remote, run_server
        from polyvox.server.workers import run_workers

        if settings.workers == 1:
            connect = connect_remote(*processes.endpoints)
            run_server(connect, settings, listener, engine_failed=processes.start_failed, wyoming=wyoming)
        else:
            run_workers(processes.endpoints, settings, listener, processes.start_failed, wyoming)
        display.close()
        processes.check()


def _show_start(settings: Settings, listener: socket.socket) -> ProgressBar | ProgressLog:
    if settings.log_format == "json":
        log.info("server starting", extra={"address": _address(settings, listener)})
        return ProgressLog()
    console.print(f"Starting on {_address(settings, listener)}; /readyz reports the progress.", soft_wrap=True)
    return progress_display()


def _address(settings: Settings, listener: socket.socket) -> str:
    host = f"[{settings.host}]" if ":" in settings.host else settings.host
    scheme = "http" if settings.tls_cert is None else "https"
    return f"{scheme}://{host}:{listener.getsockname()[1]}"


def _print_summary(
    settings: Settings,
    listener: socket.socket,
    info: "ModelInfo",
    stats: dict[str, float],
    seconds: dict[str, float],
    num_replicas: int = 1,
) -> None:
    """Print the model, the duration of the start by stage, the capacity, the address and an example request.

    stats, seconds: of the first replica that is ready.
    """
    _warn_of_unknown_aliases(settings, info)
    address = _address(settings, listener)
    is_open = not settings.api_keys and not ip_address(listener.getsockname()[0]).is_loopback
    if settings.log_format == "json":
        fields = {"address": address, "model": info.identity.name, "voices": info.voices, "slots": stats["slots"]}
        stage_seconds = {stage: round(value, 1) for stage, value in seconds.items()}
        more = {"replicas": num_replicas} if num_replicas > 1 else {}
        capacity = {"capacity": stats["capacity"], "capacity_limit": find_limit(stats)}
        log.info("server listening", extra={**fields, **capacity, "start_seconds": stage_seconds, **more})
        if is_open:
            log.warning("no authentication", extra={"address": address, "hint": "Set api_keys to require a key."})
        return
    name = "the embedded voice" if settings.model is None else info.identity.name
    voices = f"; voices: {', '.join(info.voices)}" if info.voices else ""
    console.print(f"Loaded {name}{voices}", soft_wrap=True)
    stages = ", ".join(f"{stage} {value:.1f}" for stage, value in seconds.items() if stage != "total")
    console.print(f"Engine ready in {seconds['total']:.1f} s" + (f": {stages}" if stages else ""), soft_wrap=True)
    each = f"Capacity of each of {num_replicas} replicas" if num_replicas > 1 else "Capacity"
    console.print(f"{each}: {describe_capacity(stats)}.", soft_wrap=True)
    console.print(f"Listening on {address} (press Ctrl-C to stop).", soft_wrap=True)
    if settings.wyoming is not None:
        console.print(f"Wyoming (Home Assistant) on {settings.wyoming}, without API keys.", soft_wrap=True)
    if is_open:
        console.print("warning: the server accepts requests without authentication. Set api_keys to require a key.")
    console.print("Open the address in a browser for the playground, or try:")
    key = "-H 'authorization: Bearer YOUR_API_KEY' " if settings.api_keys else ""
    body = key + """-H 'content-type: application/json' -d '{"input": "Hello there."}'"""
    console.print(f"  curl {address}/v1/audio/speech {body} -o hello.mp3", soft_wrap=True)


def _warn_of_unknown_aliases(settings: Settings, info: "ModelInfo") -> None:
    """A voice may still be added to the library, so an alias of an unknown one is no error."""
    if not settings.voice_aliases:
        return
    from polyvox.server.voice_catalog import VoiceCatalog
    from polyvox.voices import VoiceLibrary

    with suppress(VoiceLibraryError):  # requests report it
        library = VoiceLibrary() if settings.voices_dir is None else VoiceLibrary(settings.voices_dir)
        unknown = VoiceCatalog(library, info, settings.voice_aliases).unknown_aliases()
        if unknown and settings.log_format == "json":
            log.warning("unknown voice in voice_aliases", extra={"aliases": unknown})
        elif unknown:
            console.print(f"warning: no such voice in voice_aliases: {', '.join(unknown)}.", soft_wrap=True)


def _bind(host: str, port: int, setting: str = "") -> socket.socket:
    try:
        family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    except OSError as error:
        raise InvalidRequest(setting or "host", host, f"must be an address of this machine: {error.strerror}") from None
    try:
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except OSError as error:
        hint = f"Choose another --{setting}." if setting else "Choose another --host or --port."
        raise InvalidRequest(
            setting or "address", f"{host}:{port}", f"cannot be bound: {error.strerror}", hint
        ) from None
