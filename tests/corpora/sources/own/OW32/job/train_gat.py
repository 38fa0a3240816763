import argparse
import torch
import torch.nn.functional as F
from ogb.nodeproppred import PygNodePropPredDataset
from torch_geometric.nn import GATConv
from tqdm import trange


class GAT(torch.nn.Module):
    def __init__(self, inputs, hidden, outputs, heads):
        super().__init__()
        self.first = GATConv(inputs, hidden, heads)
        self.second = GATConv(hidden * heads, outputs, 1)

    def forward(self, x, edge_index):
        return self.second(F.elu(self.first(x, edge_index)), edge_index)


def main():
    ap = argparse.ArgumentParser()
    ap.add_argument('--root'); ap.add_argument('--seed', type=int)
    ap.add_argument('--heads', type=int, default=4)
    ap.add_argument('--epochs', type=int, default=200)
    args = ap.parse_args()
    torch.manual_seed(args.seed)
    dataset = PygNodePropPredDataset('ogbn-arxiv', root=args.root)
    graph = dataset[0].to('cuda')
    model = GAT(graph.num_features, 32, dataset.num_classes, args.heads).to('cuda')
    optimizer = torch.optim.Adam(model.parameters(), lr=0.005, weight_decay=5e-4)
    bar = trange(args.epochs)
    for epoch in bar:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(graph.x, graph.edge_index), graph.y.squeeze())
        loss.backward()
        optimizer.step()
        bar.set_postfix(loss=float(loss))


main()
