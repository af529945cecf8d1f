"""The public contract only grows: what is in contract.txt keeps its name, number, type and presence for ever.

The file holds one line an element. A new element is appended to it by hand, with the lines that the failing test
prints; a line that changes or goes away breaks clients that exist, and is a new package (`chairlift.v2`).
"""

from collections.abc import Iterator
from pathlib import Path

import pytest
from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor, FileDescriptor, ServiceDescriptor

from chairlift.ipc import common
from chairlift.v1 import inference_pb2, ops_pb2

GOLDEN = Path(__file__).with_name("contract.txt")
FILES: list[FileDescriptor] = [inference_pb2.DESCRIPTOR, ops_pb2.DESCRIPTOR]
TYPE_NAMES = {
    number: name.removeprefix("TYPE_").lower()
    for name, number in vars(FieldDescriptor).items()
    if name.startswith("TYPE_")
}


def field_line(field: FieldDescriptor) -> str:
    of = field.message_type or field.enum_type
    kind = of.full_name if of else TYPE_NAMES[field.type]
    if field.is_repeated:
        presence = "repeated "
    elif field.containing_oneof and not field.containing_oneof.name.startswith("_"):
        presence = f"oneof {field.containing_oneof.name} "
    elif field.has_presence and not field.message_type:
        presence = "optional "
    else:
        presence = ""
    return f"field {field.full_name} = {field.number}: {presence}{kind}"


def message_lines(message: Descriptor) -> Iterator[str]:
    yield from (field_line(field) for field in message.fields)
    for nested in message.nested_types:
        yield from message_lines(nested)


def enum_lines(enum: EnumDescriptor) -> Iterator[str]:
    yield from (f"value {enum.full_name}.{value.name} = {value.number}" for value in enum.values)


def service_lines(service: ServiceDescriptor) -> Iterator[str]:
    for method in service.methods:
        stream = "stream " if method.server_streaming else ""
        assert not method.client_streaming, f"{method.full_name}: no method of ours takes a stream"
        yield f"method {method.full_name}: {method.input_type.full_name} -> {stream}{method.output_type.full_name}"


def contract_lines() -> list[str]:
    lines: list[str] = []
    for file in FILES:
        for message in file.message_types_by_name.values():
            lines.extend(message_lines(message))
        for enum in file.enum_types_by_name.values():
            lines.extend(enum_lines(enum))
        for service in file.services_by_name.values():
            lines.extend(service_lines(service))
    return lines


def test_nothing_in_the_contract_was_renamed_renumbered_retyped_or_removed() -> None:
    gone = [line for line in GOLDEN.read_text().splitlines() if line not in set(contract_lines())]
    assert not gone, "clients that exist rely on:\n" + "\n".join(gone)


def test_every_element_of_the_contract_is_recorded() -> None:
    recorded = set(GOLDEN.read_text().splitlines())
    new = [line for line in contract_lines() if line not in recorded]
    assert not new, f"append to {GOLDEN.name}:\n" + "\n".join(new)


def test_fields_of_a_message_are_declared_in_the_order_of_their_numbers() -> None:
    """So that a new field's number is the one after the last, and a reader sees a gap."""
    for file in FILES:
        for message in file.message_types_by_name.values():
            numbers = [field.number for field in message.fields]
            assert numbers == sorted(numbers), message.full_name


@pytest.mark.parametrize(
    ("internal", "public", "prefix"),
    [
        (common.FinishReason, inference_pb2.FinishReason, "FINISH_REASON_"),
        (common.CancelOutcome, inference_pb2.CancelOutcome, "CANCEL_OUTCOME_"),
        (common.WaitReason, inference_pb2.WaitReason, "WAIT_REASON_"),
    ],
)
def test_enums_of_the_inner_links_have_the_public_ones_values(
    internal: type[common.FinishReason], public: type[inference_pb2.FinishReason], prefix: str
) -> None:
    """The gateway passes these numbers on as they are."""
    mine = {f"{prefix}{member.name}": member.value for member in internal}
    assert mine == {name: number for name, number in public.items() if number != 0}
