"""The prompt of a request: text, token ids or a conversation."""

from collections.abc import Sequence

from chairlift.v1 import inference_pb2 as pb
from gateway.text.chat_template import Chat, ChatTurn
from gateway.validation.limits import MAX_NAME_CHARS, MAX_ROLE_CHARS, RequestLimits
from gateway.validation.spec import ChatInput, IdsInput, PromptInput, TextInput
from gateway.validation.violations import Violations


def check_prompt(request: pb.GenerateRequest, limits: RequestLimits, violations: Violations) -> PromptInput:
    """The request's input. What is invalid is reported; what is returned then is not to be used."""
    match request.WhichOneof("input"):
        case "text":
            violations.check(request.text != "", "text", "must not be empty")
            _check_fits(len(request.text), "text", limits, violations)
            return TextInput(request.text)
        case "token_ids":
            violations.check_unknown_fields(request.token_ids, "token_ids")
            ids = request.token_ids.ids
            violations.check(len(ids) > 0, "token_ids.ids", "must not be empty")
            check_prompt_length(len(ids), "token_ids.ids", limits, violations)
            check_token_ids(ids, "token_ids.ids", limits.vocab_size, violations)
            return IdsInput(tuple(ids))
        case "messages":
            chat = check_chat(request.messages, limits.max_chat_messages, violations)
            _check_fits(sum(len(turn.content) for turn in chat.turns), "messages.messages", limits, violations)
            return ChatInput(chat)
        case _:
            violations.add("input", "one of text, token_ids and messages must be set")
            return TextInput("")


def check_chat(messages: pb.ChatMessages, max_messages: int, violations: Violations) -> Chat:
    """A conversation, the text parts of each message joined as they are."""
    path = "messages"
    violations.check_unknown_fields(messages, path)
    count = len(messages.messages)
    violations.check(count > 0, f"{path}.messages", "must have at least one message")
    violations.check(
        count <= max_messages,
        f"{path}.messages",
        f"may have at most {max_messages} messages",
        max_chat_messages=max_messages,
    )
    turns = []
    for index, message in enumerate(messages.messages[:max_messages]):
        turns.append(_check_message(message, f"{path}.messages[{index}]", violations))
        if violations.is_full:
            break
    continues = messages.continue_final_message
    opens = messages.add_generation_prompt if messages.HasField("add_generation_prompt") else not continues
    violations.check(
        not (opens and continues),
        f"{path}.continue_final_message",
        "cannot go together with add_generation_prompt",
    )
    return Chat(tuple(turns), add_generation_prompt=opens, continue_final_message=continues)


def check_token_ids(ids: Sequence[int], path: str, vocab_size: int, violations: Violations) -> None:
    """Each id is one of the model's."""
    if ids and max(ids) >= vocab_size:
        index = next(index for index, token_id in enumerate(ids) if token_id >= vocab_size)
        violations.add(f"{path}[{index}]", f"must be a token id below {vocab_size}", vocab_size=vocab_size)


def check_prompt_length(num_tokens: int, path: str, limits: RequestLimits, violations: Violations) -> None:
    """A prompt of that many tokens leaves room for one of output."""
    violations.check(
        num_tokens <= limits.max_prompt_tokens,
        path,
        f"{num_tokens} tokens are more than a prompt may have, {limits.max_prompt_tokens}",
        max_prompt_tokens=limits.max_prompt_tokens,
        max_model_len=limits.max_model_len,
        kv_capacity_tokens=limits.kv_capacity_tokens,
    )


def _check_message(message: pb.ChatMessage, path: str, violations: Violations) -> ChatTurn:
    violations.check_unknown_fields(message, path)
    role = message.role
    violations.check(
        0 < len(role) <= MAX_ROLE_CHARS and role.isprintable(),
        f"{path}.role",
        f"must be 1 to {MAX_ROLE_CHARS} printable characters",
    )
    parts = []
    for index, part in enumerate(message.content):
        if part.WhichOneof("part") == "text":
            parts.append(part.text)
            violations.check_unknown_fields(part, f"{path}.content[{index}]")
        else:
            violations.add(f"{path}.content[{index}]", "must be text: no other kind of part is supported")
    name = message.name if message.HasField("name") else None
    if name is not None:
        violations.check(
            0 < len(name) <= MAX_NAME_CHARS and name.isprintable(),
            f"{path}.name",
            f"must be 1 to {MAX_NAME_CHARS} printable characters",
        )
    return ChatTurn(role, "".join(parts), name)


def _check_fits(num_chars: int, path: str, limits: RequestLimits, violations: Violations) -> None:
    """Refuses what cannot fit whatever its tokens turn out to be, before time is spent on them."""
    most = limits.max_prompt_tokens * limits.max_piece_bytes
    violations.check(
        num_chars <= most,
        path,
        f"{num_chars} characters cannot fit into a prompt of {limits.max_prompt_tokens} tokens",
        max_prompt_tokens=limits.max_prompt_tokens,
    )
