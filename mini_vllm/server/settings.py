"""The settings of a server."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from pathlib import Path

from mini_vllm.checks import an_instance, real_number, refusal, whole_number
from mini_vllm.engine_config import EngineConfig, EngineParts, parse_memory

DEFAULT_MAX_WAITING = 256
DEFAULT_KEY_SHARE = 0.5
DEFAULT_MAX_BODY_BYTES = 2 * 2**20
DEFAULT_DRAIN_S = 30.0


@dataclass(frozen=True)
class ServerSettings:
    """The settings of one server. ``engine`` applies to every model, except for the model's name."""

    models: tuple[str, ...] = ("tiny-tales",)
    host: str = "127.0.0.1"
    #: 0 means any free port.
    port: int = 8000
    #: Names that a request's Host may have besides ``host``, localhost and plain addresses.
    allowed_hosts: tuple[str, ...] = ()
    #: See ``access/keys.py``. None means that no key is needed, and only this machine is served.
    keys_file: Path | None = None
    #: The number of sequences per model that may wait for a seat; see ``access/concurrency_limit.py``.
    max_waiting: int = DEFAULT_MAX_WAITING
    #: The fraction of a model's running and waiting sequences that one key may hold while others of its priority wait.
    key_share: float = DEFAULT_KEY_SHARE
    #: The limit on weights and KV caches of all models together, such as "4GB". None means no limit.
    memory: str | int | None = None
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    #: How long running requests may take to finish when the server is told to stop.
    drain_s: float = DEFAULT_DRAIN_S
    #: Whether a request with a field that has no effect is rejected; see ``NO_EFFECT`` in ``api/protocol.py``.
    strict_fields: bool = False
    #: Whether a front has already counted a request against its key's rate; see ``replicas``.
    is_replica: bool = False
    engine: EngineConfig = EngineConfig()
    parts: EngineParts | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.models, tuple) or not self.models or not all(map(_is_name, self.models)):
            raise refusal("models", self.models, "a tuple of at least one model's name")
        whole_number("port", self.port, 0, 65535)
        whole_number("max_waiting", self.max_waiting, 0)
        real_number("key_share", self.key_share, at_most=1, above=0)
        whole_number("max_body_bytes", self.max_body_bytes, 1)
        real_number("drain_s", self.drain_s, 0)
        an_instance("engine", self.engine, EngineConfig)
        if self.memory is not None:
            try:
                parse_memory(self.memory)
            except ValueError:
                raise refusal("memory", self.memory, "a number of bytes, or a size such as '4GB' or '2GiB'") from None
        if self.keys_file is None and not is_loopback(self.host):
            raise ValueError(f"host is {self.host!r}, which other machines can reach; without keys, anyone could use "
                             "the models and read other people's prompts. Add --keys keys.toml, or use 127.0.0.1")

    @property
    def max_memory_bytes(self) -> int | None:
        return None if self.memory is None else parse_memory(self.memory)


def _is_name(name: object) -> bool:
    return isinstance(name, str) and bool(name)


def is_loopback(host: str) -> bool:
    """Check whether an address is a loopback address: only programs on this machine can reach it or connect from it."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
