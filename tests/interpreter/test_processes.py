"""Processes that a script starts: its ranks, or one for a debugger in their place."""

from __future__ import annotations

from typing import Any


def test_one_process_for_a_debugger_beside_many_is_no_rank(lint: Any) -> None:
    script = """
def main(rank, world_size):
    if rank == 0:
        with open("params.txt", "w") as file:
            file.write("on")
    dist.init_process_group("nccl", rank=rank, world_size=world_size)
    dist.destroy_process_group()


if __name__ == "__main__":
    if "--debug" in sys.argv:
        main(0, 1)
    else:
        for rank in range(8):
            mp.Process(target=main, args=(rank, 8)).start()
"""
    assert lint.body(script.replace('"--debug" in sys.argv', "len(sys.argv) > 1"), "DDP502").codes == set()
