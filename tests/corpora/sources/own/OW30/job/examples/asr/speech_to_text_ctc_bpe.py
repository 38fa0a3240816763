import lightning.pytorch as pl
from nemo.collections.asr.models.ctc_bpe_models import EncDecCTCModelBPE
from nemo.core.config import hydra_runner
from nemo.utils.exp_manager import exp_manager


@hydra_runner(config_path='../../conf', config_name='conformer_ctc_bpe')
def main(cfg):
    trainer = pl.Trainer(**cfg.trainer)
    exp_manager(trainer, cfg.get('exp_manager', None))
    asr_model = EncDecCTCModelBPE(cfg=cfg.model, trainer=trainer)
    trainer.fit(asr_model)


if __name__ == '__main__':
    main()
