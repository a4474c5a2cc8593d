"""What the right kernels compute, in PyTorch."""

import torch


def row_sum(x):
    return x.sum(-1)


def row_variance(x):
    return x.var(-1, unbiased=False)


def softmax(x):
    return x.softmax(-1)


def layer_norm(x, gamma, beta, eps):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], gamma, beta, eps)


def transpose(x):
    return x.T.contiguous()


def histogram(x):
    return {"bins": torch.bincount(x, minlength=16)}


def scale(x, factor):
    return x * factor


def half_sums(x):
    return x.view(-1, 16).sum(-1)


def compact(x):
    return {"count": (x > 0).sum().reshape(1)}


def last_block(x):
    return {"y": x.sum().reshape(1)}


def total(x):
    return x.sum().reshape(1)


def half_polynomial(x):
    return x * x / 2 + 1


def warp_functions(x):
    positive = (x > 0).sum()
    return {"largest": x.max().reshape(1), "counts": torch.stack([positive] * 3 + [positive * 0])}


def reversed_rows(x):
    return {"x": x.flip(-1), "negative": (x < 0).any().int().reshape(1)}
