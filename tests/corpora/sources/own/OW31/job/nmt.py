import argparse
import torch
import horovod.torch as hvd
from torch.optim import Adam
from torch.utils.tensorboard import SummaryWriter
from model import Seq2SeqTransformer

p = argparse.ArgumentParser()
p.add_argument('--hidden', type=int, default=512)
p.add_argument('--dataset', default='multi30k')
p.add_argument('--tokens-per-batch', type=int, default=2048)
p.add_argument('--updates', type=int, default=100000)
p.add_argument('--resume', action='store_true')
args = p.parse_args()
hvd.init()
model = Seq2SeqTransformer(args.hidden, src='de', tgt='en').cuda()
opt = hvd.DistributedOptimizer(Adam(model.parameters(), lr=5e-4, betas=(0.9, 0.98)))
writer = SummaryWriter('/tb')
start = 0
if args.resume:
    state = torch.load('/ckpt/nmt.pt')
    model.load_state_dict(state['model'])
    start = state['update']
for update in range(start, args.updates):
    loss = model(next_batch(args.dataset, args.tokens_per_batch))
    opt.zero_grad(); loss.backward(); opt.step()
    writer.add_scalar('loss', loss.item(), update)
    if update % 1000 == 0 and hvd.rank() == 0:
        torch.save({'model': model.state_dict(), 'update': update}, '/ckpt/nmt.pt')
