import argparse
import horovod.torch as hvd
import torch
from torch import nn

ap = argparse.ArgumentParser(description='DLRM')
ap.add_argument('--arch-sparse-feature-size', type=int, default=64)
ap.add_argument('--data-set', choices=['kaggle', 'terabyte'], default='kaggle')
ap.add_argument('--mini-batch-size', type=int, default=512, help='for one rank')
ap.add_argument('--nepochs', type=int, default=1)
ap.add_argument('--optimizer', default='adagrad', choices=['sgd', 'adagrad'])
ap.add_argument('--save-model', default='')
ap.add_argument('--load-model', default='')
args = ap.parse_args()


class DLRM(nn.Module):
    def __init__(self, m):
        super().__init__()
        self.emb = nn.ModuleList(nn.EmbeddingBag(10 ** 6, m, sparse=True) for _ in range(26))


hvd.init()
torch.cuda.set_device(hvd.local_rank())
model = DLRM(args.arch_sparse_feature_size).cuda()
make = torch.optim.SGD if args.optimizer == 'sgd' else torch.optim.Adagrad
optimizer = hvd.DistributedOptimizer(make(model.parameters(), lr=0.01 * hvd.size()), named_parameters=model.named_parameters())
if args.load_model:
    model.load_state_dict(torch.load(args.load_model)['state_dict'])
for epoch in range(args.nepochs):
    for i, (dense, sparse, label) in enumerate(criteo(args.data_set, args.mini_batch_size)):
        loss = nn.functional.binary_cross_entropy_with_logits(model(dense, sparse), label)
        optimizer.zero_grad(); loss.backward(); optimizer.step()
        if i % 1024 == 0 and hvd.rank() == 0:
            print('Finished training it {} of epoch {}, loss {:.6f}'.format(i, epoch, loss.item()))
    if args.save_model:
        torch.save({'state_dict': model.state_dict(), 'epoch': epoch}, args.save_model)
