"""The process that runs a plain reward function: ``python -m miles.rollout.reward_worker DOTTED_PATH``.

It reads pickled ``(what, prompt)`` frames from standard input and writes one pickled ``(ok, result)`` frame for each, after
a first one that says the function is loaded. The parent kills it when a call takes too long; when the parent goes, standard
input ends and so does this process, even in the middle of a call.
"""

import os
import pickle
import queue
import struct
import sys
import threading
from typing import Any, BinaryIO

from miles.config.dotted import load_dotted

HEADER = struct.Struct(">Q")


def pack(value: Any) -> bytes:
    """A value as a frame: length, then pickle."""
    payload = pickle.dumps(value)
    return HEADER.pack(len(payload)) + payload


def read_frames(source: BinaryIO, frames: "queue.SimpleQueue[bytes]") -> None:
    """Queue the payload of every frame; end the process when there are no more."""
    while len(header := source.read(HEADER.size)) == HEADER.size:
        frames.put(source.read(HEADER.unpack(header)[0]))
    os._exit(0)


def reply_to(judge: Any, payload: bytes) -> bytes:
    """The frame that answers a call; whatever the function raises or returns, there is one."""
    try:
        what, prompt = pickle.loads(payload)
        return pack((True, judge(what, prompt)))
    except BaseException as error:  # noqa: BLE001 - user code may raise anything; the parent is told and counts it
        return pack((False, f"the reward raised {error!r}"))


def main(path: str) -> None:
    """Answer calls until standard input ends."""
    # the function may print: its standard output goes to standard error, the frames keep the pipe to themselves
    replies = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
    threading.Thread(target=read_frames, args=(sys.stdin.buffer, frames), daemon=True).start()
    judge = load_dotted(path, "custom_rm_path", kind="reward")
    frame = pack((True, "ready"))
    while True:
        replies.write(frame)
        replies.flush()
        frame = reply_to(judge, frames.get())


if __name__ == "__main__":
    main(sys.argv[1])
