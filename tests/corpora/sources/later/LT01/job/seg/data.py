import glob
from torch.utils.data import Dataset


class Cityscapes(Dataset):
    def __init__(self, root, crop):
        self.files = sorted(glob.glob(root + "/leftImg8bit/train/*/*.png"))
        self.crop = crop

    def __len__(self):
        return len(self.files)
