# old but running: TensorFlow 1.15
TRAIN_DIR=/tmp/flowers-models/inception_v3
python2.7 train_image_classifier.py --train_dir=${TRAIN_DIR} --dataset_name=flowers --model_name=inception_v3 \
  --num_clones=2 --batch_size=32 --max_number_of_steps=20000 --save_interval_secs=600
