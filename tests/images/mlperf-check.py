"""One step of each submission to MLPerf Training v0.6 with its own code, on the processor.

Usage: mlperf-check.py BENCHMARK [FOLDER]. The benchmark is base, coco, gnmt, maskrcnn, ssd or
transformer; the folder holds the submission's files, those of
https://github.com/mlcommons/training_results_v0.6. What its training programs import has to be
there, and one part of it that needs no GPU has to compute right. Its kernels for GPUs are not run.

Exit status: 0 passed, else failed. The last line of standard output is the finding.

Python 3.6 and PyTorch 1.1 have to run it: the bases have no newer Python.
"""

import importlib
import json
import sys
import tempfile
from pathlib import Path

# What the training programs import at their beginning, beside PyTorch.
MODULES = {
    "base": (
        "apex",
        "apex_C",
        "amp_C",
        "apex.contrib.groupbn.batch_norm",
        "apex.contrib.xentropy.softmax_xentropy",
        "apex.optimizers.fused_sgd",
        "mlperf_compliance",
        "mlperf_compliance.mlperf_log",
    ),
    "coco": ("torchvision", "pycocotools.coco", "pycocotools.cocoeval"),
    "gnmt": (
        "sacrebleu",
        "seq2seq.inference.bleu",
        "seq2seq.models.gnmt",
        "seq2seq.train.smoothing",
        "seq2seq.train.trainer",
    ),
    "maskrcnn": (
        "cv2",
        "maskrcnn_benchmark.config",
        "maskrcnn_benchmark.data",
        "maskrcnn_benchmark.engine.inference",
        "maskrcnn_benchmark.engine.trainer",
        "maskrcnn_benchmark.modeling.detector",
        "maskrcnn_benchmark.solver",
    ),
    "ssd": ("SSD", "coco_pipeline", "nvidia.dali.pipeline", "ssd300", "utils"),
    "transformer": (
        "fairseq.data.data_utils",
        "fairseq.models.transformer",
        "fairseq.progress_bar",
        "fairseq.tasks.translation",
        "six",
        "strided_batched_gemm",
    ),
}


def base_step(torch):
    """apex joins tensors to one and takes that apart again, in compiled code."""
    import apex_C  # noqa: PLC0415 - each benchmark has modules of its own

    tensors = [torch.arange(6.0).view(2, 3), torch.ones(4)]
    parts = apex_C.unflatten(apex_C.flatten(tensors), tensors)
    same = all(torch.equal(tensor, parts[n]) for n, tensor in enumerate(tensors))
    return "" if same else f"apex_C.unflatten gave {parts}"


def coco_step(_):
    """A detection that equals the truth has an average precision of 1, by compiled code."""
    from pycocotools.coco import COCO  # noqa: PLC0415
    from pycocotools.cocoeval import COCOeval  # noqa: PLC0415

    box = {"image_id": 1, "category_id": 1, "bbox": [10.0, 20.0, 30.0, 40.0]}
    truth = {
        "images": [{"id": 1, "width": 100, "height": 100}],
        "categories": [{"id": 1, "name": "thing"}],
        "annotations": [{"id": 1, "iscrowd": 0, "area": 1200.0, "segmentation": [], **box}],
    }
    with tempfile.TemporaryDirectory() as folder:
        truths, results = Path(folder, "truths.json"), Path(folder, "results.json")
        truths.write_text(json.dumps(truth), encoding="utf-8")
        results.write_text(json.dumps([{"score": 0.9, **box}]), encoding="utf-8")
        known = COCO(annotation_file=str(truths), use_ext=True)
        detected = known.loadRes(str(results), use_ext=True)
        judge = COCOeval(known, detected, iouType="bbox", use_ext=True)
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    precision = float(judge.stats[0])
    return "" if abs(precision - 1) < 1e-6 else f"the average precision is {precision}, not 1"


def gnmt_step(torch):
    """Attention's weights are a distribution, and of equal keys their sum is the key."""
    from seq2seq.models.attention import BahdanauAttention  # noqa: PLC0415

    attention = BahdanauAttention(4, 4, 4, batch_first=True, fusion=False)
    keys = torch.ones(1, 3, 1) * torch.tensor([1.0, -2.0, 3.0, 0.5])
    context, weights = attention(torch.rand(1, 2, 4), keys)
    total = float(weights.detach().sum())
    if abs(total - 2) > 1e-4:
        return f"the weights of 2 queries sum up to {total}"
    off = float((context - keys[:, :2]).detach().abs().max())
    return "" if off < 1e-4 else f"attention to equal keys is {off} off"


def maskrcnn_step(torch):
    """Of two boxes that cover each other the worse one is dropped, by the compiled extension."""
    from maskrcnn_benchmark import _C  # noqa: PLC0415

    boxes = torch.tensor([[0.0, 0, 10, 10], [1.0, 1, 10, 10], [50.0, 50, 60, 60]])
    kept = sorted(_C.nms(boxes, torch.tensor([0.8, 0.9, 0.7]), 0.5).tolist())
    return "" if kept == [1, 2] else f"non-maximum suppression kept {kept}, not [1, 2]"


def ssd_step(_):
    """Of the 8732 default boxes, each overlaps most with itself, and there completely."""
    from utils import DefaultBoxes, calc_iou_tensor  # noqa: PLC0415

    ratios = [[2], [2, 3], [2, 3], [2, 3], [2], [2]]  # these and the sizes as in its train.py
    sizes, steps = [38, 19, 10, 5, 3, 1], [8, 16, 32, 64, 100, 300]
    scales = [21, 45, 99, 153, 207, 261, 315]
    boxes = DefaultBoxes(300, sizes, steps, scales, ratios)(order="ltrb")
    if boxes.size(0) != 8732:
        return f"there are {boxes.size(0)} default boxes, not 8732"
    overlap, place = calc_iou_tensor(boxes[5000:5001], boxes).max(dim=1)
    found = int(place[0]), round(float(overlap[0]), 4)
    return "" if found == (5000, 1.0) else f"box 5000 overlaps most with (box, part) {found}"


def transformer_step(_):
    """Every sentence is in one batch, and no batch is longer than it may be."""
    import numpy as np  # noqa: PLC0415
    from fairseq.data import batch_C_v0p6  # noqa: PLC0415

    lengths = np.array([3, 9, 17, 5, 12, 8, 20, 6], dtype=np.int64)
    order = np.argsort(lengths).astype(np.int64)
    batches = batch_C_v0p6.make_batches_v0p6(
        lengths, lengths, order, 64, 8, 1, 32, 8, 1.1, 0, False
    )
    found = sorted(number for batch in batches for number in batch)
    if found != list(range(len(lengths))):
        return f"the batches hold sentences {found}"
    longest = max(len(batch) * max(lengths[number] for number in batch) for batch in batches)
    return "" if longest <= 64 else f"a batch has {longest} words, and 64 are allowed"


STEPS = {
    "base": base_step,
    "coco": coco_step,
    "gnmt": gnmt_step,
    "maskrcnn": maskrcnn_step,
    "ssd": ssd_step,
    "transformer": transformer_step,
}


def main(arguments):
    if len(arguments) not in (1, 2) or arguments[0] not in STEPS:
        print(f"usage: mlperf-check.py {'|'.join(STEPS)} [FOLDER]")
        return 2
    name = arguments[0]
    sys.path[:0] = arguments[1:]
    try:
        torch = importlib.import_module("torch")
        for module in MODULES[name]:
            importlib.import_module(module)
        fault = STEPS[name](torch)
    except Exception as error:  # whatever the submission's code raises is the finding
        fault = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    print(fault or f"{name}: {len(MODULES[name])} modules, {STEPS[name].__doc__.splitlines()[0]}")
    return 1 if fault else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
