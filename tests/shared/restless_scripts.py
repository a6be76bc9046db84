"""Scripts that start processes of every kind and never end, for signals to the command; each process bears a token.

The token is the script's first argument, and on the command line or in the environment of all that it starts. That of
the daemon is on its command line only: its environment is empty.
"""

from __future__ import annotations

HEAD = """
import os, subprocess, sys, time
token = sys.argv[1]
open(f"began-{token}-{os.environ.get('RANK', 'alone')}", "w").close()
"""
SLEEPER = '"import time; time.sleep(1000)"'
SCRIPTS = {
    "loader": HEAD
    + """
import torch
from torch.utils.data import DataLoader, Dataset

class Slow(Dataset):
    def __len__(self):
        return 1000
    def __getitem__(self, index):
        time.sleep(0.05)
        return torch.ones(8)

for batch in DataLoader(Slow(), batch_size=2, num_workers=2, persistent_workers=True):
    open(f"deep-{token}", "w").close()
time.sleep(1000)
""",
    "children": HEAD
    + f"""
stubborn = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(1000)"
subprocess.Popen([sys.executable, "-c", {SLEEPER}, token])
subprocess.Popen([sys.executable, "-c", stubborn, token], start_new_session=True)
open(f"deep-{{token}}", "w").close()
import torch
time.sleep(1000)
""",
    "daemon": HEAD
    + f"""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        open(f"deep-{{token}}", "w").close()
        os.execve(sys.executable, [sys.executable, "-c", {SLEEPER}, token], {{}})
    os._exit(0)
time.sleep(1000)
""",
    "spawn": HEAD
    + """
import torch.multiprocessing as mp

def rank(number, lock):
    open(f"deep-{token}", "w").close()
    time.sleep(1000)

if __name__ == "__main__":
    mp.spawn(rank, (mp.get_context("spawn").Lock(),), nprocs=2)
""",
}
