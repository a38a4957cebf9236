"""States that a server keeps: which of a program's states has a session there, what it holds, and when it is closed.

A state's first request opens a session in passing, later ones bring what is new; forks fork the session that is nearest. All of it
is a matter of bytes sent: whenever the server has no session (any more), a request brings all its ids, and nobody notices.

Everything here runs on the event loop of the calls, except for what is said to be for any thread.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ...runtime.errors import RametError

Post = Callable[[str, dict[str, Any]], Awaitable[dict[str, Any]]]  # path, body -> answer; raises what went wrong

SESSION_CODES = ("session_not_found", "session_busy", "too_many_sessions")  # of answers that mean: say it in another way

LEAST = 64  # ids; a shorter beginning that forks have in common is not worth a request of its own
PAUSE = 5.0  # seconds during which a full server is not asked for more sessions
LINGER = 0.1  # seconds in which sessions that end are gathered, to be closed by one request


@dataclass(frozen=True)
class Held:
    """A session on the server, and the ids that it certainly begins with."""

    name: str
    ids: tuple[int, ...]
    salt: str


@dataclass(eq=False)
class State:
    """A state as far as its session goes. `base`: what it began with as a fork of `origin`."""

    origin: State | None = None
    base: tuple[int, ...] = ()
    held: Held | None = None
    closed: bool = False
    forks: int = 0
    turns: int = 0  # under way by its session
    opening: asyncio.Task[None] | None = field(default=None, repr=False)

    def fork(self, ids: tuple[int, ...]) -> State:
        """From any thread."""
        self.forks += 1
        return State(self, ids)


@dataclass(eq=False)
class Turn:
    """How one generation is asked for: the path, and the fields that say under what."""

    state: State
    prompt: tuple[int, ...]
    salt: str
    path: str
    source: dict[str, Any]
    under: State | None = None  # whose session it goes by
    opens: bool = False  # a session, for the state
    over: bool = False

    def body(self, rest: dict[str, Any]) -> dict[str, Any]:
        return {**self.source, "generate": rest} if self.path == "/session" else {**self.source, **rest}


class Sessions:
    """All sessions that one endpoint holds, `most` at a time: beyond that the one that idled longest is closed."""

    def __init__(self, post: Post, most: int) -> None:
        self.post = post
        self.most = most  # 0: the server has none
        self._held: OrderedDict[State, None] = OrderedDict()  # the one used last is last
        self._coming = 0
        self._ended: list[str] = []
        self._closing: asyncio.Task[None] | None = None
        self._full_until = 0.0

    async def turn(self, state: State, prompt: tuple[int, ...], salt: str, *, keep: bool, plainly: bool) -> Turn:
        """How `prompt` is best said for `state`, or, `plainly`, without a session; `settle` must follow."""
        plainly = plainly or state.closed
        near = None if plainly else await self._under(state, salt)
        at = 0 if near is None or near.held is None else common(near.held.ids, prompt)
        if near is None or near.held is None or not at:
            if keep and not plainly and self._room():
                self._coming += 1
                return Turn(state, prompt, salt, "/session", {"input_ids": prompt, "cache_salt": salt}, opens=True)
            return Turn(state, prompt, salt, "/generate", {"input_ids": prompt, "cache_salt": salt or None})
        near.turns += 1
        self._held.move_to_end(near)
        fork = near is not state or not keep
        opens = fork and keep and self._room()
        self._coming += opens
        source = {"tokens": at, "append_ids": prompt[at:], "fork": fork, "keep": opens or not fork}
        return Turn(state, prompt, salt, f"/session/{near.held.name}/generate", source, near, opens)

    def settle(self, turn: Turn, last: dict[str, Any] | None = None, ids: Sequence[int] = ()) -> None:
        """The turn is over: with the last event and the ids of its answer, or, without, in vain. Once is enough."""
        if turn.over:
            return
        turn.over = True
        self._coming -= turn.opens
        if turn.under is not None:
            turn.under.turns -= 1
        name = None if last is None else last.get("session_id")
        if name is None or not (turn.opens or turn.under is turn.state and turn.source["keep"]):
            return
        assert last is not None
        self._hold(turn.state, Held(name, turn.prompt + tuple(ids[: last["kept"]]), turn.salt))

    def _hold(self, state: State, held: Held) -> None:
        if state.held is not None and state.held.name != held.name:
            self._end(state.held.name)
        if state.closed:
            self._end(held.name)
            self.lost(state)
            return
        state.held = held
        self._held[state] = None
        self._held.move_to_end(state)

    def refused(self, turn: Turn, code: str | None) -> bool:
        """Learns from an answer why a turn could not be taken. Whether the next one must do without a session."""
        if code == "session_not_found" and turn.under is not None:
            self.lost(turn.under)
            return False
        if code == "too_many_sessions":
            self._full_until = asyncio.get_running_loop().time() + PAUSE
        elif code != "session_busy":
            self.most = 0  # a server without these routes
        return True

    def lost(self, state: State) -> None:
        """The server does not know the state's session any more."""
        state.held = None
        self._held.pop(state, None)

    def close(self, state: State) -> None:
        """The state has ended; its session may go."""
        state.closed = True
        if state.held is not None:
            self._end(state.held.name)
            self.lost(state)

    async def close_all(self) -> None:
        """At the end: one request for all."""
        self._ended += [state.held.name for state in self._held if state.held is not None]
        self._held.clear()
        if self._closing is not None:
            self._closing.cancel()
        await self._close_ended()

    async def _under(self, state: State, salt: str) -> State | None:
        """Whose session it goes by. Forks of a state that has said nothing yet get one for what they have in common."""
        near, origin = self.nearest(state, salt), state.origin
        if near is None and origin is not None and origin.forks > 1 and len(state.base) >= LEAST:
            await self._begin(origin, state.base, salt)
            near = self.nearest(state, salt)
        return near

    def nearest(self, state: State | None, salt: str) -> State | None:
        """The state itself or one that it comes from, whichever has a session first."""
        while state is not None and (state.held is None or state.held.salt != salt):
            state = state.origin
        return state

    async def _begin(self, state: State, ids: tuple[int, ...], salt: str) -> None:
        """Opens a session for what forks of `state` have in common, once for all of them."""
        if state.opening is None or state.opening.done():
            if not self._room():
                return
            state.opening = asyncio.create_task(self._open(state, ids, salt))
        await asyncio.shield(state.opening)

    async def _open(self, state: State, ids: tuple[int, ...], salt: str) -> None:
        self._coming += 1
        try:
            answer = await self.post("/session", {"input_ids": ids, "cache_salt": salt})
            self._hold(state, Held(answer["session_id"], ids, salt))
        except RametError:
            pass  # each fork finds out for itself what is wrong, and says so
        finally:
            self._coming -= 1

    def _room(self) -> bool:
        """Whether one more may be opened; the one that was not used for longest makes room."""
        if not self.most or asyncio.get_running_loop().time() < self._full_until or self._coming >= self.most:
            return False
        while len(self._held) + self._coming >= self.most:
            idle = next((state for state in self._held if not state.turns), None)
            if idle is None:
                return False
            if idle.held is not None:
                self._end(idle.held.name)
            self.lost(idle)
        return True

    def _end(self, name: str) -> None:
        self._ended.append(name)
        if self._closing is None or self._closing.done():
            self._closing = asyncio.create_task(self._close_soon())

    async def _close_soon(self) -> None:
        while self._ended:
            await asyncio.sleep(LINGER)
            await self._close_ended()

    async def _close_ended(self) -> None:
        names, self._ended = self._ended, []
        if names:
            try:
                await self.post("/session/close", {"session_ids": names})
            except RametError:
                pass  # the server drops idle sessions by itself


def common(known: Sequence[int], ids: Sequence[int]) -> int:
    """How many ids the two begin with alike."""
    if ids[: len(known)] == known:  # as nearly always
        return len(known)
    return next((i for i, (a, b) in enumerate(zip(known, ids, strict=False)) if a != b), min(len(known), len(ids)))
