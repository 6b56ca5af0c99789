"""Values <-> wire for the stream between KV manager and worker.

A message is the batch of one turn, in order, for one worker epoch. Functions come in pairs, `x_to_wire` /
`x_from_wire`. Items are created in place by `add`, which is much cheaper than creating messages and copying them. The
readers raise ProtocolError for an item of an unknown kind.
"""

from collections.abc import Iterable, Sequence
from typing import Any

from fastserve.v1 import kvmanager_pb2 as wire
from services.domain.errors import ProtocolError
from services.domain.ids import BlockId, CommandNumber, Epoch, JobId
from services.domain.protocol import (
    Applied,
    Assign,
    BlockMove,
    Done,
    KvToWorker,
    Offload,
    ReleaseBlocks,
    Upload,
    WorkerPools,
)
from services.domain.worker_facts import KvWorkerFacts


def _add_moves(field: Any, moves: Sequence[BlockMove]) -> None:
    add = field.add
    for table_index, device_block, host_block in moves:
        add(index=table_index, device_block=device_block, host_block=host_block)


def _moves(field: Iterable[wire.BlockMove]) -> tuple[BlockMove, ...]:
    return tuple(BlockMove(one.index, BlockId(one.device_block), BlockId(one.host_block)) for one in field)


def _blocks(field: Iterable[int]) -> tuple[BlockId, ...]:
    return tuple(BlockId(block) for block in field)


def commands_to_wire(epoch: Epoch, commands: Iterable[KvToWorker]) -> wire.KvManagerServiceWorkerLinkResponse:
    """The commands of one turn to a worker, in the order of their numbers."""
    batch = wire.KvManagerServiceWorkerLinkResponse(epoch=epoch)
    add = batch.commands.add
    for value in commands:
        item = add(command_number=value.command_number, job_id=value.job_id)
        match value:
            case Assign(device_blocks=device_blocks):
                item.assign.SetInParent()
                item.assign.device_blocks.extend(device_blocks)
            case Offload(moves=moves, valid_tokens=valid_tokens):
                item.offload.valid_tokens = valid_tokens
                _add_moves(item.offload.moves, moves)
            case Upload(device_blocks=device_blocks, moves=moves, valid_tokens=valid_tokens):
                item.upload.valid_tokens = valid_tokens
                item.upload.device_blocks.extend(device_blocks)
                _add_moves(item.upload.moves, moves)
            case ReleaseBlocks():
                item.release.SetInParent()
    return batch


def _command(item: wire.KvCommand) -> KvToWorker:
    command_number, job_id = CommandNumber(item.command_number), JobId(item.job_id)
    match item.WhichOneof("command"):
        case "assign":
            return Assign(command_number, job_id, _blocks(item.assign.device_blocks))
        case "offload":
            return Offload(command_number, job_id, _moves(item.offload.moves), item.offload.valid_tokens)
        case "upload":
            upload = item.upload
            return Upload(
                command_number, job_id, _blocks(upload.device_blocks), _moves(upload.moves), upload.valid_tokens
            )
        case "release":
            return ReleaseBlocks(command_number, job_id)
        case _:
            raise ProtocolError(f"KV command {command_number} for job {job_id} is of an unknown kind")


def commands_from_wire(batch: wire.KvManagerServiceWorkerLinkResponse) -> tuple[Epoch, tuple[KvToWorker, ...]]:
    """The inverse of commands_to_wire. Raises ProtocolError."""
    return Epoch(batch.epoch), tuple(_command(item) for item in batch.commands)


def kv_hello_to_wire(facts: KvWorkerFacts) -> wire.KvManagerServiceWorkerLinkRequest:
    """The first message of a worker."""
    pools = facts.pools
    return wire.KvManagerServiceWorkerLinkRequest(
        epoch=pools.epoch,
        hello=wire.KvWorkerHello(
            group=facts.group,
            block_size=pools.block_size,
            device_blocks=pools.device_block_count,
            host_blocks=pools.host_block_count,
            block_bytes=facts.block_bytes,
        ),
    )


def kv_hello_from_wire(message: wire.KvManagerServiceWorkerLinkRequest) -> KvWorkerFacts:
    """The inverse of kv_hello_to_wire. Raises ProtocolError if the message is not a hello or has no epoch."""
    if not message.HasField("hello") or message.epoch == 0:
        raise ProtocolError("the first message of a worker's stream must be a hello with an epoch greater than 0")
    hello = message.hello
    pools = WorkerPools(
        epoch=Epoch(message.epoch),
        block_size=hello.block_size,
        device_block_count=hello.device_blocks,
        host_block_count=hello.host_blocks,
    )
    return KvWorkerFacts(hello.group, pools, hello.block_bytes)


def acknowledgements_to_wire(
    epoch: Epoch, acknowledgements: Iterable[Applied | Done]
) -> wire.KvManagerServiceWorkerLinkRequest:
    """The acknowledgements of one turn of a worker."""
    batch = wire.KvManagerServiceWorkerLinkRequest(epoch=epoch)
    add = batch.acknowledgements.add
    for value in acknowledgements:
        applied = isinstance(value, Applied)
        add(
            command_number=value.command_number,
            state=wire.KV_COMMAND_STATE_APPLIED if applied else wire.KV_COMMAND_STATE_DONE,
        )
    return batch


def acknowledgements_from_wire(
    batch: wire.KvManagerServiceWorkerLinkRequest,
) -> tuple[Epoch, tuple[Applied | Done, ...]]:
    """The inverse of acknowledgements_to_wire. Raises ProtocolError."""
    values: list[Applied | Done] = []
    for one in batch.acknowledgements:
        command_number = CommandNumber(one.command_number)
        if one.state == wire.KV_COMMAND_STATE_APPLIED:
            values.append(Applied(command_number))
        elif one.state == wire.KV_COMMAND_STATE_DONE:
            values.append(Done(command_number))
        else:
            raise ProtocolError(f"the acknowledgement of KV command {command_number} has an unknown state")
    return Epoch(batch.epoch), tuple(values)
