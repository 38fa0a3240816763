from lightning.pytorch.cli import LightningCLI
from speech.data import LibriSpeechData
from speech.model import ConformerCTC

if __name__ == "__main__":
    LightningCLI(ConformerCTC, LibriSpeechData, save_config_kwargs={"overwrite": True})
