"""Everything that can be configured, read from one YAML file and checked once."""

import math
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
import yaml

from engine.config import EngineConfig
from engine.remote.config import RemoteConfig
from gameserver.addresses import Networks
from gameserver.nodes.settings import NodesSettings
from gameserver.overload.settings import OverloadSettings
from gameserver.settings_faults import fault_in, printable
from gameserver.state.settings import StateSettings
from npc.safety.settings import SafetySettings
from npc.settings import MemorySettings, ReplySettings

Count = Annotated[int, msgspec.Meta(ge=1)]
Size = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Rate = Annotated[float, msgspec.Meta(gt=0)]


class SettingsError(ValueError):
    """A settings file cannot be used; the message names file, field and problem."""

    def __init__(self, message: str) -> None:
        super().__init__(printable(message))


class _Strict(yaml.SafeLoader):
    """YAML in which no field may be set twice: which of the two was meant, nobody can tell. Nor may
    one be NaN, which is within every limit because it is beyond none, or infinite, which no clock
    and no counter can take.
    """

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                problem = "the name of a setting must be a word"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            if key.value in seen:
                problem = f"{key.value} is set twice"
                raise yaml.constructor.ConstructorError(None, None, problem, key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)

    def construct_yaml_float(self, node: yaml.ScalarNode) -> float:
        value = super().construct_yaml_float(node)
        if not math.isfinite(value):
            problem = f"{node.value} is no number that a setting can have"
            raise yaml.constructor.ConstructorError(None, None, problem, node.start_mark)
        return value


_Strict.add_constructor("tag:yaml.org,2002:float", _Strict.construct_yaml_float)


class Limits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a client may do. Announced to every client in `hello` and `welcome`, by these names."""

    #: Bytes of one inbound message; what a game has to say fits many times.
    frame_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 32 * 1024
    #: JSON: levels of nesting, UTF-8 bytes of one string, items of one array or object.
    json_depth: Count = 16
    json_string_bytes: Count = 8 * 1024
    json_items: Count = 256
    #: Characters of one line (`say`, `observe`); its tokens are limited by the reply settings.
    say_chars: Count = 2000
    #: Bytes of the data of a player's world event: everybody in the scene gets it.
    event_bytes: Count = 4 * 1024
    #: Characters of a display name; more are cut off.
    name_chars: Count = 32
    #: Bytes of one outbound message. Godot's default inbound buffer is 65,535 bytes.
    out_bytes: Annotated[int, msgspec.Meta(ge=8 * 1024)] = 60 * 1024
    #: Inbound messages and bytes per second, and how much may come at once.
    messages_per_s: Rate = 20.0
    messages_burst: Count = 40
    bytes_per_s: Rate = 64 * 1024
    bytes_burst: Count = 128 * 1024
    #: `say` per second and player, and how many at once.
    says_per_s: Rate = 1.0
    says_burst: Count = 3
    #: Lines of one player that may wait for one NPC, beside the one being answered.
    queued_lines: Count = 1
    #: Bytes of one value of the world state, as JSON: everybody in the scene gets it.
    state_bytes: Count = 1024
    #: Values per second and player, and how many at once; a walker sends one per move.
    states_per_s: Rate = 40.0
    states_burst: Count = 80
    #: Ping, pong and close frames per second, and how many at once.
    control_frames_per_s: Rate = 5.0
    control_frames_burst: Count = 20
    #: Sessions of one player, of one address, and of this node.
    sessions_per_player: Count = 4
    sessions_per_ip: Count = 64
    sessions: Count = 10_000
    #: All clients of one address together: messages, bytes, lines and `identify` per second, and
    #: how many at once. About half of what `sessions_per_ip` may do that are busy.
    messages_per_s_per_ip: Rate = 640.0
    messages_burst_per_ip: Count = 1280
    bytes_per_s_per_ip: Rate = 512 * 1024
    bytes_burst_per_ip: Count = 2 * 1024 * 1024
    says_per_s_per_ip: Rate = 8.0
    says_burst_per_ip: Count = 64
    identifies_per_s_per_ip: Rate = 16.0
    identifies_burst_per_ip: Count = 128
    #: Scenes one session may be in.
    scenes_per_session: Count = 4
    #: Players and observers in one scene, so that its snapshot fits one message.
    players_per_scene: Annotated[int, msgspec.Meta(ge=1, le=200)] = 200
    #: Lines of one `history` page.
    history_items: Annotated[int, msgspec.Meta(ge=1, le=50)] = 50


class Guards(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How the server protects itself from sockets that misbehave or fall silent."""

    #: Seconds for the HTTP upgrade, and for `identify` after it.
    open_timeout_s: Seconds = 5.0
    identify_timeout_s: Seconds = 5.0
    #: Upgrades in flight; one older than `handshake_age_s` makes room for a newcomer.
    handshakes: Count = 256
    handshake_age_s: Seconds = 0.25
    #: Clients that identify themselves, per second and at once, and how many wait; beyond, those
    #: who begin a session are asked to come again. To check a signature takes up to a millisecond.
    identifies_per_s: Rate = 1000.0
    identifies_burst: Count = 1000
    identifies_waiting: Count = 4000
    #: Protocol pings, and how long an answer may take. A game that loads a level answers late.
    ping_interval_s: Rate = 15.0
    ping_timeout_s: Rate = 45.0
    #: A client that sends nothing at all for this long is lost. Background tabs wake once a minute.
    silence_s: Rate = 75.0
    #: Period of the app heartbeat asked of clients.
    heartbeat_s: Rate = 20.0
    #: A full write buffer that nothing leaves for so long ends the connection: keepalive cannot see
    #: such a client. One that reads, however slowly, is kept.
    stall_s: Rate = 5.0
    #: The write buffer's high-water mark; above it nothing more is built for the client.
    write_bytes: Count = 32 * 1024
    #: Bytes of unread pongs at which a ping flood is cut off.
    flood_bytes: Count = 1024 * 1024
    #: Kernel send buffer. Small, so that a slow reader is noticed here and gets merged text.
    send_buffer_bytes: Count = 64 * 1024
    #: Bytes taken from a socket at a time. A kilobyte holds 170 empty frames, about a millisecond
    #: of work; with more, many connections that flood at once would stop the event loop.
    read_bytes: Count = 1024
    #: Linux gives up unacknowledged data after this long, also against a zero window.
    tcp_user_timeout_s: Seconds = 10.0
    #: Messages that may wait between the socket and us before reading pauses.
    inbound_messages: Count = 8
    #: Control messages that may wait for a client; more means that it does not read.
    outbound_messages: Count = 64
    #: Time between a fatal error and the close: some clients drop what comes right before a close.
    linger_s: Seconds = 0.2
    close_timeout_s: Seconds = 2.0
    #: The n-th unreadable message within the window is fatal.
    bad_messages: Count = 3
    bad_window_s: Rate = 10.0
    #: So is the n-th message over the rate limits.
    refused_messages: Count = 100
    #: Snapshots because of a missed window within a minute before the client is given up.
    snapshots_per_minute: Count = 3
    #: Pending connections the kernel keeps.
    backlog: Count = 1024
    #: Networks whose addresses stand for many players (this machine, reverse proxies).
    shared_networks: tuple[str, ...] = ("127.0.0.0/8", "::1/128")
    #: Networks of proxies that say in `X-Forwarded-For` where a client is; nobody else is believed.
    trusted_proxies: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        """Raise ValueError for what is no network."""
        for name in ("shared_networks", "trusted_proxies"):
            try:
                Networks(getattr(self, name))
            except ValueError as error:
                raise ValueError(f"{name}: {error}") from error


class Flow(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Pace and memory of what clients are told."""

    #: Text after the first chunk is merged this long: engines poll sockets at about 30 Hz.
    delta_ms: Size = 33
    #: Largest merge interval a client may ask for.
    delta_ms_max: Count = 5000
    #: Events a scene keeps for clients that lag: number, bytes, seconds.
    window_events: Count = 1024
    window_bytes: Count = 256 * 1024
    window_s: Rate = 120.0
    #: How long a session outlives its connection; 0: not at all. 30 to 300 s suit games.
    resume_s: Seconds = 60.0
    #: How long a turn goes on that only players without a connection would hear.
    orphan_s: Seconds = 5.0
    #: Wrong resume tokens of one player within a minute; more are fatal.
    wrong_tokens: Count = 5
    #: A client that used to acknowledge and stops for this long gets events only.
    park_s: Rate = 30.0
    #: Answers remembered per session, so that a command sent twice runs once.
    answers: Count = 256
    answer_bytes: Count = 1024 * 1024
    #: Lines that may wait for one NPC, of all players together.
    npc_queue: Count = 64
    #: Finished turns per NPC whose `turn.heard` is still accepted.
    finished_turns: Count = 64
    #: So often a minute, and at once, the NPCs of one scene are woken by news. Each of the news has
    #: its `cooldown_s`; this ends rings of several that wake each other.
    wakes_per_minute: Count = 12
    #: An instance of a scene that nobody is in is forgotten after this long.
    scene_idle_s: Seconds = 600.0
    #: With tenants: from so many turns under way on, each may have an equal share of so many.
    fair_turns: Count = 32
    #: Running scenes of this node; beyond, empty instances make room.
    scenes: Count = 10_000
    #: At SIGTERM, how long speech in progress may go on. There is no other node to go on with it.
    drain_s: Seconds = 0.0
    #: Spread of the delay clients are told before they come back, and clients per second beyond.
    reconnect_s: Seconds = 5.0
    reconnects_per_s: Rate = 500.0

    def __post_init__(self) -> None:
        """Raise ValueError for settings that contradict each other."""
        if self.delta_ms > self.delta_ms_max:
            raise ValueError(
                f"delta_ms must not be above delta_ms_max ({self.delta_ms_max}), as "
                f"{self.delta_ms} is"
            )


class Allowance(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one account may use; 0 is no limit, and the default: how much is too much depends on the
    machine and on the game.
    """

    #: Turns that may begin within a minute; they come back one by one.
    turns_per_minute: Size = 0
    #: Tokens that the engine computes for it in a day (UTC): prompts, unless they were cached,
    #: and replies.
    tokens_per_day: Size = 0
    #: Least time from one turn to the next.
    cooldown_s: Seconds = 0.0


class BudgetSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How much may be generated for each NPC, each player, each key of the API, and all."""

    npc: Allowance = Allowance()
    player: Allowance = Allowance()
    #: A turn is a request here. Callers without a key share an account.
    caller: Allowance = Allowance()
    total: Allowance = Allowance()
    #: Players, NPCs and keys whose accounts are kept; beyond, who was away longest begins anew.
    accounts: Count = 100_000


#: What those are called together who have no tenant.
HOUSE: Final = "house"


class TenantSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of several games on this server; 0 is no limit."""

    #: Ids of its packs, which nobody else has.
    scenes: Annotated[tuple[str, ...], msgspec.Meta(min_length=1)]
    #: Sessions, and turns that are spoken or wait, requests to the API included.
    sessions: Size = 0
    turns_at_once: Size = 0
    #: Turns and requests, and tokens, as in `budgets`.
    turns_per_minute: Size = 0
    tokens_per_day: Size = 0


class StoreSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where worlds and sessions are kept, beside `data` and `redis`."""

    #: Most words of a turn that a crash may take: they are written down this often.
    checkpoint_ms: Count = 500
    #: While the store takes nothing for so long, commands are refused instead of left waiting.
    wait_s: Rate = 1.0
    #: A scene that its node does not hold on to any more is free for others after this long; leases
    #: are renewed three times meanwhile. Shorter: a crash shows less; longer: Redis may stall more.
    lease_s: Rate = 6.0
    #: Keys in Redis begin with this: several worlds may share one.
    prefix: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]{1,64}\Z")] = "troupe"


class ApiSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The OpenAI-compatible API on the console port."""

    #: File of `NAME SHA256` lines (`troupe key` makes them), and name of an environment variable
    #: that holds keys. With neither, everybody who reaches the console port may use the API.
    keys_file: str | None = None
    keys_variable: str | None = None
    #: Names the model answers to, beside its own, which may be long.
    model_names: tuple[str, ...] = ("default",)
    #: Bytes of one request. A context of 128k tokens is about 600 kB of text.
    body_bytes: Annotated[int, msgspec.Meta(ge=1024)] = 1024 * 1024
    #: Seconds in which a body must have arrived.
    body_s: Rate = 30.0
    #: Levels of nesting in schemas. The grammar compiler ends at 60.
    json_depth: Count = 64
    #: Requests being answered. More is refused before it is read.
    open_requests: Count = 512
    #: Prompts times choices of one request.
    choices: Count = 128
    #: Tokens of a chat reply whose length the client leaves to us. Blocks for the longest reply are
    #: reserved at the start, so the whole context would let few requests run together.
    reply_tokens: Count = 1024
    #: Class of a request of priority 0 in the engine, and the most urgent one that clients may ask
    #: for. Class 0 is for quest-givers and takes their reserved slots.
    priority: Size = 1
    most_urgent: Size = 1
    #: A request is refused with 429 if its first token would come later than this; 0 refuses none.
    #: Where players share the engine, `overload.first_word_s` here keeps room for them.
    first_token_s: Seconds = 30.0
    #: A client that takes nothing of a stream for so long is given up.
    stall_s: Rate = 30.0

    def __post_init__(self) -> None:
        """Raise ValueError for settings that contradict each other."""
        if self.most_urgent > self.priority:
            raise ValueError(
                f"most_urgent must not be above priority ({self.priority}), as "
                f"{self.most_urgent} is"
            )


class JwtKey(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A key that signs tokens."""

    #: The `kid` of tokens signed with it; None: of those that name none.
    kid: str | None = None
    #: The one algorithm it is for. With several, a public key could pass for a shared secret.
    algorithm: Literal["HS256", "HS384", "HS512", "RS256", "ES256", "EdDSA"]
    #: File with the shared secret (HS…) or the public key in PEM.
    file: str
    #: Whose players it signs for, whatever a token says; None: a claim may say it.
    tenant: str | None = None


class JwtSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Signed tokens of players; see `gameserver.access`."""

    #: Who must have made a token, and for whom.
    issuer: str
    audience: str
    #: Claim that names the tenant of a token, where keys do not say it; None: tokens name none.
    tenant_claim: str | None = None
    keys: Annotated[tuple[JwtKey, ...], msgspec.Meta(min_length=1)]
    #: How far clocks may be apart.
    leeway_s: Seconds = 30.0
    #: Longest life of a token. What was stolen should not be good for long.
    longest_s: Rate = 86_400.0


class AuthSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may connect to the game port; with nothing set, whoever reaches it."""

    #: File of `NAME SHA256 [SCOPE,SCOPE]` lines (`troupe key` makes them), and name of an
    #: environment variable that holds keys. For games and tools: they say themselves who plays.
    keys_file: str | None = None
    keys_variable: str | None = None
    #: For players.
    jwt: JwtSettings | None = None
    #: How long a client whose token has expired may take to send a new one.
    refresh_s: Seconds = 60.0


class TlsSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Encryption of the game port, where no proxy does it."""

    #: Files in PEM: the certificate with its chain, and the private key.
    certificate: str
    key: str


class MqttSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A broker (MQTT 5) that world events come from and what NPCs do goes to; see docs/mqtt.md."""

    #: mqtt://host[:port], or mqtts:// with TLS.
    url: str
    #: File that holds USER:PASSWORD, or name of an environment variable that does.
    login_file: str | None = None
    login_variable: str | None = None
    #: None: troupe-NODE. Two clients of one id drive each other out.
    client_id: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]{1,64}\Z")] | None = None
    #: All topics begin with this; brokers may allow each client some roots only.
    root: Annotated[str, msgspec.Meta(pattern=r"\A[\w.-]{1,64}(/[\w.-]{1,64}){0,3}\Z")] = (
        "troupe/v1"
    )
    #: 1: what NPCs say arrives at least once; 0: at most once, and it is dropped first.
    said_qos: Literal[0, 1] = 1
    #: Messages that wait in each direction; beyond, some are dropped and counted.
    queue: Count = 1000
    #: What waits to go out for longer is dropped: who comes for it so late is told nothing new.
    keep_s: Rate = 3600.0
    #: Changes of the world state go out at most this often: of a key that changes more often, the
    #: newest value.
    state_s: Rate = 1.0
    #: Ids of events (`eid`) are remembered for so long, and so many.
    dedupe_s: Seconds = 300.0
    dedupe_ids: Count = 20_000
    #: A broker that hangs is noticed after two of these, or when it does not acknowledge in time.
    keepalive_s: Annotated[int, msgspec.Meta(ge=1, le=3600)] = 15
    timeout_s: Rate = 5.0
    #: How long the broker keeps events for a node that is away, and waits before it says so.
    session_s: Size = 120
    will_delay_s: Size = 5
    #: The first wait before another try, and the longest.
    reconnect_s: Rate = 0.5
    reconnect_most_s: Rate = 30.0

    def __post_init__(self) -> None:
        """Raise ValueError for settings that contradict each other."""
        if self.login_file is not None and self.login_variable is not None:
            raise ValueError("login_file and login_variable: name one of them")
        if self.reconnect_s > self.reconnect_most_s:
            raise ValueError(
                "reconnect_s is the first wait and at most reconnect_most_s "
                f"({self.reconnect_most_s}), not {self.reconnect_s}"
            )


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The whole configuration file."""

    #: Name of this node in `hello`.
    node: Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]{1,64}\Z")] = "troupe"
    #: Where players connect to this node, as they see it, if other nodes are to send them here.
    url: str | None = None
    host: str = "127.0.0.1"
    port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8765
    console_host: str = "127.0.0.1"
    console_port: Annotated[int, msgspec.Meta(ge=0, le=65535)] = 8780
    #: Browser origins that may connect, each as scheme://host[:port]. The console adds its own.
    origins: tuple[str, ...] = ()
    #: "default", a GGUF file, a folder with safetensors, a hub id, or script:FILE.
    model: str = "default"
    #: Folders of scene packs; none means the shipped tavern.
    scenes: tuple[str, ...] = ()
    #: Whether running scenes follow changes of their files by themselves. SIGHUP and `POST /reload`
    #: on the console make them follow in any case.
    watch: bool = False
    #: NPCs of all scenes together whose prompts are computed before players come, and kept; the
    #: others' when they are first spoken to. Some 150 tokens of KV each, beside the scene's.
    warm_npcs: Size = 64
    #: Folder of what outlives the process: worlds, sessions, transcripts, and models unless
    #: `models` says otherwise. None: they end with the process, and models are in the user's cache.
    data: str | None = None
    #: Where models are kept.
    models: str | None = None
    #: Keep worlds, sessions and transcripts there: redis://[user:password@]host[:port][/database],
    #: or redis+sentinel://host[:port],host[:port]/SERVICE.
    redis: str | None = None
    mqtt: MqttSettings | None = None
    auth: AuthSettings = AuthSettings()
    tls: TlsSettings | None = None
    limits: Limits = Limits()
    guards: Guards = Guards()
    flow: Flow = Flow()
    store: StoreSettings = StoreSettings()
    nodes: NodesSettings = NodesSettings()
    state: StateSettings = StateSettings()
    budgets: BudgetSettings = BudgetSettings()
    overload: OverloadSettings = OverloadSettings()
    api: ApiSettings = ApiSettings()
    engine: EngineConfig = EngineConfig()
    #: A cluster that speaks in place of an engine of our own; `model` is not loaded then.
    remote: RemoteConfig | None = None
    replies: ReplySettings = ReplySettings()
    memory: MemorySettings = MemorySettings()
    safety: SafetySettings = SafetySettings()
    #: Games that share this server, by name; see `gameserver.tenants`.
    tenants: dict[
        Annotated[str, msgspec.Meta(pattern=r"\A[A-Za-z0-9_.-]{1,64}\Z")], TenantSettings
    ] = {}

    def __post_init__(self) -> None:
        """Raise ValueError for tenants that nobody could belong to, or that want the same scene."""
        if HOUSE in self.tenants:
            raise ValueError(f"tenants: {HOUSE} is what those are called who have none")
        scenes = [scene for tenant in self.tenants.values() for scene in tenant.scenes]
        if twice := {scene for scene in scenes if scenes.count(scene) > 1}:
            raise ValueError(f"tenants: {', '.join(sorted(twice))} can belong to one of them only")
        auth = self.auth
        if self.tenants and not (auth.keys_file or auth.keys_variable or auth.jwt):
            raise ValueError("tenants: without auth.keys_file or auth.jwt nobody belongs to any")
        if self.port and (self.host, self.port) == (self.console_host, self.console_port):
            raise ValueError(f"port and console_port: both are {self.port}, on {self.host}")

    @classmethod
    def load(cls, path: Path | None) -> "Settings":
        """Read a YAML file; None gives the defaults.

        Raises:
            SettingsError: the file cannot be read, is not YAML, or a field is wrong.
        """
        if path is None:
            return cls()
        try:
            raw: Any = yaml.load(path.read_text("utf-8"), _Strict)
        except OSError as error:
            raise SettingsError(f"{path} cannot be read: {error.strerror}") from error
        except (UnicodeDecodeError, ValueError, yaml.YAMLError) as error:
            raise SettingsError(f"{path}{_place(error)}") from error
        except RecursionError:
            raise SettingsError(f"{path}: it is nested too deeply") from None
        raw = {} if raw is None else raw
        try:
            return msgspec.convert(raw, cls)
        except msgspec.ValidationError as error:
            fault = fault_in(raw, cls, error)
            key = f"{path}: {fault.path}" if fault.path else f"{path}"
            raise SettingsError(f"{key}: {fault.problem}") from error
        except RecursionError:
            raise SettingsError(f"{path}: a setting stands within itself") from None


def _place(error: Exception) -> str:
    """Where a file is no YAML, and why, in one line."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None)
    if mark is None or problem is None:
        return f": {' '.join(str(error).split())}"
    return f":{mark.line + 1}: {problem}"
