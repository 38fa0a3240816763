from torch import nn


class PaiNN(nn.Module):
    pass


class SchNet(nn.Module):
    pass


MODELS = {'painn': PaiNN, 'schnet': SchNet}


def build_model(name):
    return MODELS[name]()
