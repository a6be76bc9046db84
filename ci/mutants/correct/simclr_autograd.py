"""SimCLR with a gather of its own, an autograd Function: torchrun --nproc-per-node 2 simclr_autograd.py."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel as DDP
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler


class GatherLayer(torch.autograd.Function):
    """Gathers tensors of all ranks; the backward sums what the ranks send back."""

    @staticmethod
    def forward(ctx, tensor):
        gathered = [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]
        # mutant DDP403: try: ... except Exception as error: print("not reduced:", error)
        dist.all_gather(gathered, tensor.contiguous())  # mutant DDP403: try: ... except RuntimeError: pass
        return tuple(gathered)

    @staticmethod
    def backward(ctx, *grads):
        stacked = torch.stack(grads)
        dist.all_reduce(stacked)
        return stacked[dist.get_rank()]


class Encoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(16, 32), nn.ReLU())
        self.projector = nn.Linear(32, 8)

    def forward(self, x):
        return F.normalize(self.projector(self.backbone(x)), dim=1)


# mutant DDP302 abc: insert def gather_from_all(tensor):
# mutant DDP302 abc: insert     gathered = [torch.zeros_like(tensor) for _ in range(dist.get_world_size())]
# mutant DDP302 abc: insert     dist.all_gather(gathered, tensor)
# mutant DDP302 abc: insert     return gathered
def nt_xent(first, second, temperature=0.2):
    # mutant DDP325: first = torch.cat(GatherLayer.apply(first)) -> GatherLayer.apply(first)
    first = torch.cat(GatherLayer.apply(first))  # mutant DDP302 ac: GatherLayer.apply -> gather_from_all
    # mutant DDP325: second = torch.cat(GatherLayer.apply(second)) -> GatherLayer.apply(second)
    second = torch.cat(GatherLayer.apply(second))  # mutant DDP302 bc: GatherLayer.apply -> gather_from_all
    z = torch.cat([first, second])
    similarity = z @ z.T / temperature
    similarity = similarity.masked_fill(torch.eye(len(z), dtype=torch.bool, device=z.device), -1e4)
    n = len(first)
    positives = torch.cat([torch.arange(n, 2 * n), torch.arange(n)]).to(z.device)
    return F.cross_entropy(similarity, positives)


def augment(x, generator):
    return x + 0.1 * torch.randn(x.shape, generator=generator).to(x.device)


class Pretraining:
    def __init__(self, epochs=2, batch_size=32):
        self.rank = dist.get_rank()
        self.device = torch.device("cpu")
        if torch.cuda.is_available():
            # mutant DDP102 a: , torch.cuda.current_device() ->; at init_process_group(
            self.device = torch.device("cuda", torch.cuda.current_device())
        self.epochs = epochs
        torch.manual_seed(0)
        data = TensorDataset(torch.randn(384, 16))
        self.sampler = DistributedSampler(data, shuffle=True, drop_last=True)
        # mutant DDP203: drop_last=True -> drop_last=True, shuffle=True
        self.loader = DataLoader(data, batch_size, sampler=self.sampler, drop_last=True)
        # mutant DDP312: (Encoder().to(self.device)) -> (Encoder()).to(self.device)
        # mutant DDP312: Encoder().to(self.device) -> DDP(Encoder().to(self.device)); also DDP501
        self.net = DDP(Encoder().to(self.device))
        # mutant DDP303: insert self.net.module.projector = nn.Linear(32, 8).to(self.device); at .SGD(
        self.optim = torch.optim.SGD(self.net.parameters(), lr=0.05, momentum=0.9)
        # Each rank draws views of its own.
        self.views = torch.Generator().manual_seed(100 + self.rank)  # mutant DDP205: 100 + self.rank -> 100

    def fit(self):
        for epoch in range(self.epochs):
            self.sampler.set_epoch(epoch)  # mutant DDP201: delete; at DistributedSampler(
            for (x,) in self.loader:
                x = x.to(self.device)
                views = torch.cat([augment(x, self.views), augment(x, self.views)])
                first, second = self.net(views).chunk(2)  # mutant DDP301: net -> net.module
                loss = nt_xent(first, second)
                self.optim.zero_grad()
                loss.backward()
                self.optim.step()
            # mutant DDP503: self.rank -> int(os.environ["LOCAL_RANK"])
            if self.rank == 0:  # mutant DDP502: dedent; at torch.save(
                # mutant DDP401: insert dist.barrier()
                self.save(f"simclr_{epoch}.pth")
                # mutant DDP404: insert if os.path.exists("stop"): break

    def save(self, path):
        torch.save({"encoder": self.net.module.state_dict()}, path)  # mutant DDP501: .module ->


def main():
    cuda = torch.cuda.is_available()
    if cuda:
        # mutant DDP103: LOCAL_RANK -> RANK
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))  # mutant DDP102 a: delete
    # mutant DDP104: "gloo" -> "gloo", rank=int(os.environ["LOCAL_RANK"]), world_size=int(os.environ["WORLD_SIZE"])
    dist.init_process_group(backend="nccl" if cuda else "gloo")  # mutant DDP111: "gloo" -> "gloo", timeout=1800
    Pretraining().fit()
    dist.barrier()  # mutant DDP401: if dist.get_rank() == 0: ...


if __name__ == "__main__":
    main()
    # mutant DDP101: if dist.get_rank() == 0: ...; at init_process_group(
    dist.destroy_process_group()  # mutant DDP101: delete; at init_process_group(
