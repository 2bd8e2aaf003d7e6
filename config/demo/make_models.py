"""Makes the bundled demo models: `make demo-models`, then commit what changed.

- **simple**: the signature of Triton's example of that name, so that its clients work unchanged. INPUT0 and INPUT1,
  INT32 [n, 16]; OUTPUT0 is their sum, OUTPUT1 their difference.
- **digits**: reads hand-written digits. `image` FP32 [n, 8, 8] with 0 for paper and 16 for ink; `digit` INT64 [n] and
  `probabilities` FP32 [n, 10]. One hidden layer, trained on scikit-learn's copy of the UCI digits; scaling is part of
  the graph, so that a client sends pixels.

The same versions of scikit-learn, numpy and onnx give the same bytes.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from sklearn.neural_network import MLPClassifier

REPOSITORY = Path(__file__).parents[2] / "reactant_node" / "demo"
SAMPLE = Path(__file__).parent / "digit.txt"
OPSET = 17
"""Old enough for every ONNX Runtime that the node accepts."""
IR_VERSION = 8
FULL_INK = 16.0
HIDDEN = 64
LEAST_ACCURACY = 0.95
SEED = 0


def simple() -> onnx.ModelProto:
    """The sum and the difference of two rows of sixteen integers."""
    names = ("INPUT0", "INPUT1", "OUTPUT0", "OUTPUT1")
    first, second, total, difference = (
        helper.make_tensor_value_info(name, TensorProto.INT32, ["n", 16]) for name in names
    )
    nodes = [helper.make_node("Add", names[:2], names[2:3]), helper.make_node("Sub", names[:2], names[3:])]
    return model(helper.make_graph(nodes, "simple", [first, second], [total, difference]))


def digits(classifier: MLPClassifier) -> onnx.ModelProto:
    """The trained classifier as a graph from pixels to the digit and the probability of each."""
    weights = {f"weight{i}": layer for i, layer in enumerate(classifier.coefs_)}
    weights |= {f"bias{i}": layer for i, layer in enumerate(classifier.intercepts_)}
    weights["full_ink"] = np.float32(FULL_INK)
    nodes = [
        helper.make_node("Flatten", ["image"], ["pixels"], axis=1),
        helper.make_node("Div", ["pixels", "full_ink"], ["ink"]),
        helper.make_node("Gemm", ["ink", "weight0", "bias0"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("Gemm", ["active", "weight1", "bias1"], ["logits"]),
        helper.make_node("Softmax", ["logits"], ["probabilities"], axis=1),
        helper.make_node("ArgMax", ["logits"], ["digit"], axis=1, keepdims=0),
    ]
    inputs = [helper.make_tensor_value_info("image", TensorProto.FLOAT, ["n", 8, 8])]
    outputs = [
        helper.make_tensor_value_info("digit", TensorProto.INT64, ["n"]),
        helper.make_tensor_value_info("probabilities", TensorProto.FLOAT, ["n", 10]),
    ]
    constants = [numpy_helper.from_array(np.asarray(value, np.float32), name) for name, value in weights.items()]
    return model(helper.make_graph(nodes, "digits", inputs, outputs, constants))


def train() -> MLPClassifier:
    """Fits on three quarters of the data, and holds out the rest to say how good it is.

    Raises:
        SystemExit: it is worse than it has to be.
    """
    images, labels = load_digits(return_X_y=True)
    known, held_out, known_labels, held_out_labels = train_test_split(
        images / FULL_INK, labels, test_size=0.25, random_state=SEED, stratify=labels
    )
    classifier = MLPClassifier((HIDDEN,), max_iter=1000, random_state=SEED).fit(known, known_labels)
    accuracy = classifier.score(held_out, held_out_labels)
    print(f"digits: {accuracy:.1%} of {len(held_out)} held-out images are read correctly")
    if accuracy < LEAST_ACCURACY:
        raise SystemExit(f"digits: at least {LEAST_ACCURACY:.0%} are wanted")
    return classifier


def model(graph: onnx.GraphProto) -> onnx.ModelProto:
    """The graph as a checked model."""
    made = helper.make_model(
        graph, producer_name="reactant-node", ir_version=IR_VERSION, opset_imports=[helper.make_opsetid("", OPSET)]
    )
    onnx.checker.check_model(made, full_check=True)
    return made


def main() -> None:
    """Writes both models, and one image as text for people to read and clients to send."""
    for name, made in (("simple", simple()), ("digits", digits(train()))):
        path = REPOSITORY / name / "model.onnx"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(made.SerializeToString())
        print(f"{name}: {path.stat().st_size} bytes")
    images, labels = load_digits(return_X_y=True)
    three = images[int(np.flatnonzero(labels == 3)[0])].reshape(8, 8)  # noqa: PLR2004 - a digit that looks like itself
    np.savetxt(SAMPLE, three, fmt="%2d")


if __name__ == "__main__":
    main()
