import lightning as L
import torch
from torchaudio.models import Conformer


class ConformerCTC(L.LightningModule):
    def __init__(self, layers: int = 12, dim: int = 144, lr: float = 1e-3):
        super().__init__()
        self.save_hyperparameters()
        self.enc = Conformer(input_dim=80, num_heads=4, ffn_dim=dim * 4, num_layers=layers, depthwise_conv_kernel_size=31)
        self.loss = torch.nn.CTCLoss()

    def training_step(self, batch, i):
        loss = self.loss(*batch)
        self.log("train_loss", loss)
        return loss

    def configure_optimizers(self):
        return torch.optim.AdamW(self.parameters(), lr=self.hparams.lr)
