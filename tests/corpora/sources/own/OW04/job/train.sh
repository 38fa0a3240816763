MODEL_DIR="gs://bucket/t5_small_wmt"
python -m t5x.train \
  --gin_file="finetune_wmt.gin" \
  --gin.MODEL_DIR=\"${MODEL_DIR}\" \
  --gin.TRAIN_STEPS=1020000 \
  --gin.BATCH_SIZE=256
