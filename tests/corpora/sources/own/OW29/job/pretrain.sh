fairseq-hydra-train task.data=/data/manifest/libri960 distributed_training.distributed_world_size=16 \
  distributed_training.nprocs_per_node=8 optimization.update_freq='[4]' --config-dir conf/pretraining --config-name wav2vec2_base_librispeech
