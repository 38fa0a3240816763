import lightning as L
from torch.utils.data import DataLoader
from torchaudio.datasets import LIBRISPEECH


class LibriSpeechData(L.LightningDataModule):
    def __init__(self, root: str, batch_size: int = 4):
        super().__init__()
        self.save_hyperparameters()

    def train_dataloader(self):
        return DataLoader(LIBRISPEECH(self.hparams.root, "train-clean-100"), batch_size=self.hparams.batch_size, shuffle=True)
