# make -f launch.mk train
NGPU   ?= 4
DEPTH  := 28
WIDTH  := 10
RUN    := wrn$(DEPTH)x$(WIDTH)
EPOCHS ?= 100
OUT    = /scratch/runs/$(RUN)
COMMON := --out $(OUT) --workers 8

.PHONY: train clean
train: prepare
	torchrun --standalone --nproc_per_node=$(NGPU) -m wrn.cli fit \
		--depth $(DEPTH) --widen $(WIDTH) --batch 64 --epochs $(EPOCHS) $(COMMON) --amp

prepare:
	mkdir -p $(OUT)

clean:
	rm -rf $(OUT)
