"""From roles to text: what stands before and after a message.

The tokenizer's own Jinja template comes first. The pieces are found by rendering the conversation so far with marks
for contents and looking what the template wrote around them, so a program's ids are those of `apply_chat_template`.
Where a model has none, a template of this file is taken by name, and `default` otherwise.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..runtime.errors import RequestError
from .backends.base import Backend

# role: (before, after). `system` of a default message: written when the first message is not a system message.
TEMPLATES: dict[str, dict[str, Any]] = {
    "default": {"system": ("SYSTEM:", "\n"), "user": ("USER:", "\n"), "assistant": ("ASSISTANT:", "\n"), "tool": ("TOOL:", "\n")},
    "chatml": {role: (f"<|im_start|>{role}\n", "<|im_end|>\n") for role in ("system", "user", "assistant", "tool")},
    "llama-3-instruct": {
        "start": "<|begin_of_text|>",
        **{role: (f"<|start_header_id|>{role}<|end_header_id|>\n\n", "<|eot_id|>") for role in ("system", "user", "assistant")},
        "tool": ("<|start_header_id|>ipython<|end_header_id|>\n\n", "<|eot_id|>"),
    },
    "llama-2-chat": {
        "start": "<s>",
        "system": ("[INST] <<SYS>>\n", "\n<</SYS>>\n\n"),
        "user": ("[INST] ", " [/INST]"),
        "assistant": ("", " </s><s>"),
        "joined": "[INST] ",  # a system message opens the first user message
    },
    "mistral": {
        "start": "<s>",
        "user": ("[INST] ", " [/INST]"),
        "assistant": ("", "</s>"),
        "system": ("[SYSTEM_PROMPT] ", "[/SYSTEM_PROMPT]"),
    },
    "vicuna_v1.1": {
        "default_system": "A chat between a curious user and an artificial intelligence assistant. "
        "The assistant gives helpful, detailed, and polite answers to the user's questions.",
        "system": ("", " "),
        "user": ("USER: ", " "),
        "assistant": ("ASSISTANT: ", "</s>"),
    },
    "gemma-it": {
        "start": "<bos>",
        "system": ("", ""),
        "user": ("<start_of_turn>user\n", "<end_of_turn>\n"),
        "assistant": ("<start_of_turn>model\n", "<end_of_turn>\n"),
    },
    "deepseek-v3": {
        "start": "<｜begin▁of▁sentence｜>",
        "system": ("", ""),
        "user": ("<｜User｜>", ""),
        "assistant": ("<｜Assistant｜>", "<｜end▁of▁sentence｜>"),
    },
}
TEMPLATES["qwen"] = {**TEMPLATES["chatml"], "default_system": "You are a helpful assistant."}


@dataclass(slots=True)
class ChatFormat:
    """The pieces around messages for one backend. Results are kept by the roles that came before."""

    backend: Backend
    name: str | None = None  # of a template above; None: the model's own, else "default"
    _pieces: dict[tuple[tuple[str, ...], str, bool], tuple[str, str]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _facts: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.name is not None and self.name not in TEMPLATES:
            raise RequestError(f"unknown chat template {self.name!r}; known: {', '.join(TEMPLATES)}", field="chat_template")

    def around(self, before: tuple[str, ...], role: str, generates: bool) -> tuple[str, str]:
        """Text before and after a message of `role` that follows messages of the roles `before`.

        `generates`: the model writes the message, so that it begins as the generation prompt does.
        Raises RequestError if the template does not take such a message there.
        """
        key = (before, role, generates)
        found = self._pieces.get(key)
        if found is None:
            found = self._named(before, role) if self._is_named() else self._rendered(before, role, generates)
            with self._lock:
                if len(self._pieces) > 4096:  # long conversations: only the last ones matter
                    self._pieces.clear()
                self._pieces[key] = found
        return found

    @property
    def strips(self) -> bool:
        """Whether the template takes off white space around contents."""
        if "strips" not in self._facts:
            content = " \n\ue0e0\n "
            self._facts["strips"] = not self._is_named() and content not in self._render([{"role": "user", "content": content}], False)
        return self._facts["strips"]

    def stop_marks(self) -> tuple[str, ...]:
        """Special texts that end a message of the assistant and that are no end-of-text token of the model."""
        if "stops" not in self._facts:
            after = self.around(("user",), "assistant", True)[1].strip()
            mark = after.split(">")[0] + ">" if after.startswith("<") and ">" in after else ""
            ids = self.backend.encode(mark) if mark else []
            self._facts["stops"] = (mark,) if mark and not (len(ids) == 1 and ids[0] in self.backend.eos_ids) else ()
        return self._facts["stops"]

    def _is_named(self) -> bool:
        if "named" not in self._facts:
            self._facts["named"] = self.name is not None or self._render([{"role": "user", "content": "x"}], False) is None
        return self._facts["named"]

    def _named(self, before: tuple[str, ...], role: str) -> tuple[str, str]:
        template = TEMPLATES[self.name or "default"]
        if role not in template:
            raise RequestError(f"the chat template {self.name or 'default'!r} has no {role} messages", field="role")
        prefix, suffix = template[role]
        if not before:
            prefix = template.get("start", "") + prefix
            if role != "system" and "default_system" in template:
                opening, closing = template["system"]
                prefix = opening + template["default_system"] + closing + prefix
        elif before == ("system",) and role == "user" and "joined" in template:
            prefix = prefix.removeprefix(template["joined"])
        return prefix, suffix

    def _rendered(self, before: tuple[str, ...], role: str, generates: bool) -> tuple[str, str]:
        history = [{"role": r, "content": _mark(i)} for i, r in enumerate(before)]
        mark = _mark(len(before))
        written = self._render(history, False) if history else ""
        whole = self._render([*history, {"role": role, "content": mark}], False)
        if written is None or whole is None or mark not in whole:
            raise RequestError(f"the chat template does not show the content of a {role} message here", field="role")
        head, _, suffix = whole.partition(mark)
        if head.startswith(written):
            prefix = head[len(written) :]
        else:  # the template writes earlier messages in another way now; what follows the last of them is ours
            last = _mark(len(before) - 1)
            tail = written.rpartition(last)[2]
            prefix = head.rpartition(last)[2].removeprefix(tail)
        if generates and role == "assistant":
            opening = self._render(history, True) if history else None
            if opening is not None and opening.startswith(written):
                prefix = opening[len(written) :]
        return prefix, suffix

    def _render(self, messages: Sequence[dict[str, Any]], generation: bool) -> Any:
        try:
            return self.backend.render_chat(messages, add_generation_prompt=generation)
        except Exception as exc:
            roles = ", ".join(m["role"] for m in messages)
            raise RequestError(f"the model's chat template refuses messages in the order {roles}: {exc}", field="role") from exc


def _mark(index: int) -> str:
    return f"\ue0e0{index}\ue0e1"
